"""`advisor init`: the first study of a project, from what is known before it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from advisor.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.spec import Parameter, StudySpec

OPTIMIZERS = ("adam", "adamw", "nadam", "nesterov", "rmsprop", "sgd")
_RANGE = re.compile(r"^([^:]+)\.\.([^:]+)(?::(log|linear|reverse-log))?$")


@click.command()
@click.option("--optimizer", type=click.Choice(OPTIMIZERS, case_sensitive=False), help="Its hyperparameters are tuned.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="How many trials the first study may have.")
@click.option("--max-train-steps", type=click.IntRange(min=1), metavar="N", help="Optimizer steps of each trial.")
@click.option(
    "--final-train-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps of the final training, where compute is the limit: trials then take a tenth of it.",
)
@click.option(
    "--find-steps",
    type=click.IntRange(min=10),
    metavar="N",
    help="Find max_train_steps first: N steps surely fit the training data.",
)
@click.option("--metric", metavar="NAME", help="Metric to judge trials by, on validation data.")
@click.option("--direction", type=click.Choice(["minimize", "maximize"]), help="Which way it is better.")
@click.option("--study", "name", metavar="NAME", help="The study's name, and its MLflow experiment's.")
@click.option(
    "--tune",
    "tuned",
    multiple=True,
    metavar="NAME=LOW..HIGH[:log]",
    help="Tune this one too, or in this range; NAME=a,b for choices.",
)
@click.option("--fix", "fixed", multiple=True, metavar="NAME=VALUE", help="A hyperparameter that stays as it is.")
@click.option("--compare", metavar="NAME=A,B", help="What the study is to compare; the rest is tuned for each.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("study.yaml"), show_default=True, help="Study file to write."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init(
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
    out: Path,
    force: bool,
) -> None:
    """Write the first study of a project: what to tune, in which ranges, and why.

    \b
    advisor init                                        asks, on a terminal
    advisor init --optimizer adam --trials 20 --max-train-steps 10000 --metric valid/error --direction minimize
    advisor init ... --compare activation=relu,gelu     a study for each value; in one study if they are more than three
    advisor init ... --find-steps 20000                 first how long to train: a sweep of constant learning rates

    With few trials only the learning rate is tuned, with more of them further hyperparameters of the optimizer, as the playbook
    advises. Train the trials with `advisor run study.yaml -- python train.py --lr {learning_rate} ...`; what the training does not
    know of, such as epsilon, it may ignore while it is fixed.
    """
    from advisor.plans.initial import Wish, initial
    from advisor.plans.one_each import one_each
    from advisor.plans.steps_initial import sweep_first
    from advisor.spec import Objective

    optimizer = optimizer or _ask("Optimizer", "adam", click.Choice(OPTIMIZERS), "--optimizer")
    metric = metric or _ask("Metric to judge trials by, on validation data", "valid/error", str, "--metric")
    direction = direction or _ask(
        "Which way is it better", _guess(metric), click.Choice(["minimize", "maximize"]), "--direction"
    )
    trials = trials or _ask("Trials in the first study", 20, click.IntRange(min=1), "--trials")
    if max_train_steps is None and final_train_steps is None and find_steps is None:
        max_train_steps = _ask("Optimizer steps of each trial", None, click.IntRange(min=1), "--max-train-steps")
    given = dict(_parameter(text, "tune") for text in tuned) | dict(_parameter(text, "fix") for text in fixed)
    compared = _parameter(compare, "compare") if compare else None
    wish = Wish(
        study=name or out.stem,
        objective=Objective(metric=metric, direction=direction),
        optimizer=optimizer.lower(),
        trials=trials,
        max_train_steps=max_train_steps,
        final_train_steps=final_train_steps,
        given=given | ({compared[0]: compared[1]} if compared else {}),
    )
    spec = initial(wish)
    if find_steps is not None:
        specs: Sequence[StudySpec] = (sweep_first(spec, find_steps),)
    else:
        specs = one_each(spec, compared[0]) if compared else (spec,)
    _write(specs, compared[0] if compared else "", out, force=force)


def _ask(question: str, default: object, kind: Any, option: str) -> Any:
    """The answer on a terminal; elsewhere an error that names the option."""
    if not sys.stdin.isatty():
        raise AdvisorError(f"{option} is missing, and there is no terminal to ask on; pass it")
    return click.prompt(question, default=default, type=kind, err=True)


def _guess(metric: str) -> str:
    """The way in which a metric of this name is likely better."""
    from advisor.tracking.names import direction_of

    return direction_of(metric) or "minimize"


def _parameter(text: str, what: Literal["tune", "fix", "compare"]) -> tuple[str, Parameter]:
    """The hyperparameter that an option gives, by its name."""
    from pydantic import ValidationError

    from advisor.spec import Parameter

    name, _, value = (part.strip() for part in text.partition("="))
    found = _RANGE.match(value)
    if not name or not value or (found and what != "tune"):
        raise AdvisorError(f"--{what} {text!r} is not of the form {_FORMS[what]}")
    try:
        if what == "fix":
            return name, Parameter(role="fixed", value=_value(value))
        if found:
            low, high = _number(found[1], text), _number(found[2], text)
            kind = "int" if low.is_integer() and high.is_integer() and "." not in found[1] + found[2] else "float"
            given = {"type": kind, "low": low, "high": high, "scale": found[3] or "linear"}
            return name, Parameter.model_validate({"role": "nuisance", **given})
        choices = tuple(_value(choice.strip()) for choice in value.split(","))
        if len(choices) < 2:
            raise AdvisorError(f"--{what} {text!r} is not of the form {_FORMS[what]}")
        return name, Parameter(role="scientific" if what == "compare" else "nuisance", choices=choices)
    except ValidationError as error:
        raise AdvisorError(f"--{what} {text!r}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


_FORMS = {
    "tune": "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=a,b,c",
    "fix": "NAME=VALUE",
    "compare": "NAME=a,b",
}


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AdvisorError(f"--tune {whole!r}: {text!r} is not a number") from None


def _value(text: str) -> bool | int | float | str:
    """The value that the text is in a study file."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _write(specs: Sequence[StudySpec], compared: str, out: Path, *, force: bool) -> None:
    """One file for each study, all or none."""
    from advisor.spec_yaml import dump

    files = [out] if len(specs) == 1 else [_beside(out, str(s.parameters[compared].value)) for s in specs]
    there = [str(f) for f in files if f.exists()]
    if there and not force:
        raise AdvisorError(f"{', '.join(there)} exists already; pass another file as --out, or --force to overwrite it")
    for file, spec in zip(files, specs, strict=True):
        named = (
            spec
            if len(specs) == 1
            else spec.model_copy(update={"study": f"{spec.study}-{file.stem.rpartition('-')[2]}"})
        )
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dump(named), encoding="utf-8")
        except OSError as error:
            raise AdvisorError(
                f"cannot write {str(file)!r}: {error.strerror or error}; pass another file as --out"
            ) from None
        click.echo(f"{file}: {named.goal}")
    placeholders = " ".join(f"--{n.replace('_', '-')} {{{n}}}" for n in specs[0].searched)
    click.echo(f"\nadvisor run {files[0]} -- python train.py {placeholders}")


def _beside(out: Path, value: str) -> Path:
    """study.yaml and relu make study-relu.yaml."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "_", value).strip("_") or "value"
    return out.with_name(f"{out.stem}-{slug}{out.suffix or '.yaml'}")
