"""The command `advisor init`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import ValidationError

from advisor.cli.agents import write_agent_files
from advisor.cli.options import direction_option
from advisor.cli.recipes import print_gpu_hint, recipe_options, recipe_study, refuse_recipe_options, trainer_options
from advisor.contract.metric_direction import direction_of_metric
from advisor.model import parameter_kinds, placeholders
from advisor.model.errors import AdvisorError, convert_os_errors
from advisor.model.optimizers import HYPERPARAMETERS_BY_OPTIMIZER, optimizer_in_value
from advisor.model.space import is_learning_rate, words_of_name
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file
from advisor.planning.base import learning_rate
from advisor.planning.designs.initial import FirstStudyRequest, first_study_of_project
from advisor.planning.designs.one_each import one_study_per_value
from advisor.planning.designs.per_optimizer import first_study_per_optimizer
from advisor.planning.designs.steps_initial import initial_rate_sweep
from advisor.system import shell
from advisor.system.atomic import write_files

OPTIMIZER_NAMES = tuple(sorted(HYPERPARAMETERS_BY_OPTIMIZER))
OPTIMIZER_QUESTION = (
    "Optimizer (the most popular one for your kind of model: adamw for transformers, nesterov for convolutional networks)"
)
_RANGE_PATTERN = re.compile(r"^([^:]+)\.\.([^:]+)(?::(log|linear|reverse-log))?$")


def _write_agent_files(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        changed_files = write_agent_files(Path.cwd())
        click.echo("\n".join(f"{file}: written" for file in changed_files) or "The files for coding agents are up to date.")
        ctx.exit()


@click.command()
@click.option(
    "--optimizer", type=click.Choice(OPTIMIZER_NAMES, case_sensitive=False), help="Optimizer whose hyperparameters to tune."
)
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials in the first study.")
@click.option("--max-train-steps", type=click.IntRange(min=1), metavar="N", help="Optimizer steps of each trial.")
@click.option(
    "--final-train-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps of the final training, if compute is limited; each trial takes a tenth as many.",
)
@click.option(
    "--find-steps",
    type=click.IntRange(min=10),
    metavar="N",
    help="First find max_train_steps by trials of N steps, which must be enough to fit the training data.",
)
@click.option("--metric", metavar="NAME", help="Metric to judge trials by, on validation data.")
@direction_option
@click.option("--study", "name", metavar="NAME", help="Name of the study and of its MLflow experiment.")
@click.option(
    "--tune",
    "tuned",
    multiple=True,
    metavar="NAME=LOW..HIGH[:log]",
    help="Tune this hyperparameter, in this range; NAME=a,b for choices. Repeatable.",
)
@click.option("--fix", "fixed", multiple=True, metavar="NAME=VALUE", help="Fix a hyperparameter. Repeatable.")
@click.option("--compare", metavar="NAME=A,B", help="Compare these values; tune the other hyperparameters for each value.")
@recipe_options
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("study.yaml"), show_default=True, help="Study file to write."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--agents",
    is_flag=True,
    callback=_write_agent_files,
    expose_value=False,
    is_eager=True,
    help="Write no study, but a section of AGENTS.md and a skill for coding agents.",
)
@click.pass_context
def init(
    ctx: click.Context,
    /,
    optimizer: str | None,
    trials: int | None,
    max_train_steps: int | None,
    final_train_steps: int | None,
    find_steps: int | None,
    metric: str | None,
    direction: Literal["minimize", "maximize"] | None,
    name: str | None,
    tuned: tuple[str, ...],
    fixed: tuple[str, ...],
    compare: str | None,
    recipe: str | None,
    out: Path,
    force: bool,
    **lengths: int | None,
) -> None:
    """Write the first study of a project: what to tune, in which ranges, and why.

    \b
    advisor init                                        asks, on a terminal
    advisor init --optimizer adam --trials 20 --max-train-steps 10000 --metric valid/error --direction minimize
    advisor init ... --compare optimizer=sgd,adam       one study for each optimizer, with its own hyperparameters and ranges
    advisor init ... --compare activation=relu,gelu     one study for each value, or a single study for more than three values
    advisor init ... --find-steps 20000                 first find how long to train, by a sweep of constant learning rates
    advisor init --recipe sft                           fine-tune a language model with TRL; also lora, dpo, grpo
    advisor init --recipe lora --tokens 20M             as many steps as 20 million tokens allow
    advisor init --recipe pretrain --params 124M        learning rates around the one that Step Law predicts
    advisor init --agents                               tell coding agents how to use the advisor: AGENTS.md and a skill

    With few trials, only the learning rate is tuned; with more trials, other hyperparameters of the optimizer too, as the
    playbook advises. Start from a well-known architecture and its usual optimizer: adamw for transformers, nesterov (SGD with
    momentum) for convolutional networks, adam if unsure. Train the trials with `advisor run study.yaml -- python train.py --lr
    {learning_rate} ...`. The training may ignore fixed hyperparameters that it does not know, such as epsilon.

    A recipe is the first study of a language model. The study file names the sources of its ranges and shows the lines for the
    training script. The hyperparameters are named like the arguments of TRL, PEFT and Transformers. --tune and --fix replace
    their ranges.
    """
    parameters = dict(_parse_parameter(text, "tune") for text in tuned) | dict(_parse_parameter(text, "fix") for text in fixed)
    if recipe is not None:
        comment, spec = recipe_study(ctx, parameters)
        options_of = partial(trainer_options, recipe)
        _write_study_files((spec,), "", spec.parameters, out, force=force, comment=comment, options_of=options_of)
        print_gpu_hint()
        return
    refuse_recipe_options(lengths)
    compared_parameter = _parse_parameter(compare, "compare") if compare else None
    optimizer = _choose_optimizer(optimizer, parameters, compared_parameter)
    metric = metric or _ask_user("Metric to judge trials by, on validation data", "valid/error", str, "--metric")
    likely = direction_of_metric(metric)
    if direction is None and (likely is None or sys.stdin.isatty()):
        direction_type = click.Choice(["minimize", "maximize"])
        direction = _ask_user("Direction in which the metric improves", likely or "minimize", direction_type, "--direction")
    trials = trials or _ask_user("Trials in the first study", 20, click.IntRange(min=1), "--trials")
    if max_train_steps is None and final_train_steps is None and find_steps is None:
        max_train_steps = _ask_user("Optimizer steps of each trial", None, click.IntRange(min=1), "--max-train-steps")
    try:
        request = FirstStudyRequest(
            study=name or out.stem,
            objective=Objective(metric=metric, direction=direction or likely),
            optimizer=optimizer.lower(),
            trials=trials,
            max_train_steps=max_train_steps,
            final_train_steps=final_train_steps,
            parameters=parameters | ({compared_parameter[0]: compared_parameter[1]} if compared_parameter else {}),
        )
        specs = _first_studies(request, compared_parameter[0] if compared_parameter else None, find_steps)
    except ValidationError as error:
        raise AdvisorError(_validation_error_line(error)) from None
    _write_study_files(specs, compared_parameter[0] if compared_parameter else "", request.parameters, out, force=force)


def _choose_optimizer(chosen: str | None, parameters: Mapping[str, Parameter], compared: tuple[str, Parameter] | None) -> str:
    tuned_name = next((n for n, p in parameters.items() if p.searched and parameter_kinds.chooses_optimizer(n)), None)
    if tuned_name is not None:
        options = ",".join(map(str, parameters[tuned_name].options))
        raise AdvisorError(f"--tune {tuned_name}: each optimizer has ranges of its own; pass --compare {tuned_name}={options}")
    if compared is not None and parameter_kinds.chooses_optimizer(compared[0]):
        first_optimizer = next((name for v in compared[1].options if (name := optimizer_in_value(v)) is not None), None)
        return first_optimizer or OPTIMIZER_NAMES[0]
    return chosen or str(_ask_user(OPTIMIZER_QUESTION, "adam", click.Choice(OPTIMIZER_NAMES), "--optimizer"))


def _first_studies(wish: FirstStudyRequest, compared: str | None, find_steps: int | None) -> Sequence[StudySpec]:
    if compared and parameter_kinds.chooses_optimizer(compared):
        if find_steps is not None:
            raise AdvisorError("--find-steps takes one optimizer; find the steps first, then compare optimizers")
        return first_study_per_optimizer(wish, compared)
    spec = first_study_of_project(wish)
    if find_steps is None:
        return one_study_per_value(spec, compared) if compared else (spec,)
    rate = learning_rate(spec)
    if rate is None or not spec.parameters[rate].numeric:
        raise AdvisorError(f"--find-steps tries several learning rates; pass their range, --tune {rate}=1e-4..1e-1")
    return (initial_rate_sweep(spec, find_steps),)


def _validation_error_line(error: ValidationError) -> str:
    first_error = error.errors()[0]
    field_keys = [str(key) for key in first_error["loc"]]
    subject_text = next((f"--{key}: " for key in field_keys if key in ("metric", "study")), "")
    if field_keys[:1] == ["parameters"] and len(field_keys) > 1:
        subject_text = f"hyperparameter {field_keys[1][:40]!r}: "
    return subject_text + first_error["msg"].removeprefix("Value error, ")


def _ask_user(question: str, default: object, kind: Any, flag: str) -> Any:
    """Ask on the terminal. Without a terminal, raise AdvisorError, which names the option to pass instead."""
    if not sys.stdin.isatty():
        raise AdvisorError(f"{flag} is missing, and there is no terminal for a question; pass this option")
    return click.prompt(question, default=default, type=kind, err=True)


def _parse_parameter(text: str, what: Literal["tune", "fix", "compare"]) -> tuple[str, Parameter]:
    name, _, value = (part.strip() for part in text.partition("="))
    bounds, choices = _RANGE_PATTERN.match(value), [choice.strip() for choice in value.split(",")]
    if not name or not value or (bounds and what != "tune") or (what != "fix" and not bounds and len(choices) < 2):
        raise AdvisorError(f"--{what} {text!r} is not of the form {_OPTION_SYNTAX_TEXTS[what]}")
    try:
        if what == "fix":
            return name, Parameter(role="fixed", value=_parse_parameter_value(value))
        if bounds:
            low, high = _parse_range_end(bounds[1], text), _parse_range_end(bounds[2], text)
            decay_words = {"decay", "wd", "weightdecay", "l2"}
            is_weight_decay = parameter_kinds.is_regulariser(name) and decay_words & set(words_of_name(name))
            usual_scale = "log" if is_learning_rate(name) or (is_weight_decay and low > 0) else "linear"
            is_integer = low.is_integer() and high.is_integer() and "." not in bounds[1] + bounds[2] and usual_scale == "linear"
            fields = {"type": "int" if is_integer else "float", "low": low, "high": high}
            return name, Parameter.model_validate({"role": "nuisance", "scale": bounds[3] or usual_scale, **fields})
        role: Literal["scientific", "nuisance"] = "scientific" if what == "compare" else "nuisance"
        return name, Parameter(role=role, choices=tuple(map(_parse_parameter_value, choices)))
    except ValidationError as error:
        raise AdvisorError(f"--{what} {text!r}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


_OPTION_SYNTAX_TEXTS = {"tune": "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=a,b,c", "fix": "NAME=VALUE", "compare": "NAME=a,b"}


def _parse_range_end(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AdvisorError(f"--tune {whole!r}: {text!r} is not a number") from None


def _parse_parameter_value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _training_command_options(spec: StudySpec, explicit: Collection[str]) -> str:
    option_names = [name for name, p in spec.parameters.items() if p.searched or name in explicit]
    option_names += ["seed", *(name for name in placeholders.needed_placeholders(spec) if name != "seed")]
    return " ".join(map(placeholders.command_option, option_names))


def _write_study_files(
    specs: Sequence[StudySpec],
    compared: str,
    explicit: Collection[str],
    out: Path,
    *,
    force: bool,
    comment: str = "",
    options_of: Callable[[StudySpec, Collection[str]], str] = _training_command_options,
) -> None:
    """Write one file per study (all files or none) below `comment`, and print the commands that train these studies. explicit:
    hyperparameters that the user set by options and that the commands pass even if they are fixed."""
    slugs = [] if len(specs) == 1 else _unique_file_name_parts([str(s.parameters[compared].value) for s in specs])
    files = [out.with_name(f"{out.stem}-{slug}{out.suffix or '.yaml'}") for slug in slugs] or [out]
    named_specs = [s.model_copy(update={"study": f"{s.study}-{slug}"}) for s, slug in zip(specs, slugs, strict=False)] or specs
    existing_files = [str(f) for f in files if f.exists()]
    if existing_files and not force:
        raise AdvisorError(f"{', '.join(existing_files)} exists already; pass another --out, or --force to overwrite it")
    with convert_os_errors(f"cannot write {str(out)!r}", "pass another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_files({file.resolve(): comment + format_study_file(spec) for file, spec in zip(files, named_specs, strict=True)})
    for file, spec in zip(files, named_specs, strict=True):
        click.echo(f"{file}: {spec.goal}")
    command_options = [options_of(spec, explicit) for spec in specs]
    shown_files = files if any(options != command_options[0] for options in command_options) else files[:1]
    for file, options in zip(shown_files, command_options, strict=False):
        click.echo(f"\nadvisor run {shell.quote_word(str(file))} -- python train.py {options}")


def _unique_file_name_parts(values: Sequence[str]) -> list[str]:
    """Return a unique, safe part of a file name for each value; the values -1 and 1 become `1` and `1_2`."""
    slugs: list[str] = []
    for value in values:
        slug = re.sub(r"[^A-Za-z0-9.]+", "_", value).strip("_") or "value"
        numbered_slugs = (f"{slug}_{number}" for number in range(2, len(values) + 2))
        taken = {other.lower() for other in slugs}  # in lower case, because some file systems ignore case
        slugs.append(slug if slug.lower() not in taken else next(n for n in numbered_slugs if n.lower() not in taken))
    return slugs
