"""`advisor init`: the first study of a project, from what is known before it."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from advisor.model.errors import AdvisorError
from advisor.system import shell

if TYPE_CHECKING:
    from pydantic import ValidationError

    from advisor.model.spec import Parameter, StudySpec
    from advisor.planning.designs.initial import Wish

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
    from pydantic import ValidationError

    from advisor.model.spec import Objective
    from advisor.planning.designs.initial import Wish

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
    try:
        wish = Wish(
            study=name or out.stem,
            objective=Objective(metric=metric, direction=direction),
            optimizer=optimizer.lower(),
            trials=trials,
            max_train_steps=max_train_steps,
            final_train_steps=final_train_steps,
            given=given | ({compared[0]: compared[1]} if compared else {}),
        )
        specs = _studies(wish, compared[0] if compared else None, find_steps)
    except ValidationError as error:
        raise AdvisorError(_in_a_line(error)) from None
    _write(specs, compared[0] if compared else "", wish.given, out, force=force)


def _studies(wish: Wish, compared: str | None, find_steps: int | None) -> Sequence[StudySpec]:
    """The first study, or one for each value to compare."""
    from advisor.planning.base import learning_rate
    from advisor.planning.designs.initial import initial
    from advisor.planning.designs.one_each import one_each
    from advisor.planning.designs.steps_initial import sweep_first

    spec = initial(wish)
    if find_steps is None:
        return one_each(spec, compared) if compared else (spec,)
    rate = learning_rate(spec)
    if rate is None or not spec.parameters[rate].numeric:
        raise AdvisorError(f"--find-steps tries learning rates; give a range of them, --tune {rate}=1e-4..1e-1")
    return (sweep_first(spec, find_steps),)


def _in_a_line(error: ValidationError) -> str:
    """What is wrong with a name that an option gives."""
    first = error.errors()[0]
    keys = [str(key) for key in first["loc"]]
    option = next((f"--{key}: " for key in keys if key in ("metric", "study")), "")
    if keys[:1] == ["parameters"] and len(keys) > 1:
        option = f"hyperparameter {keys[1][:40]!r}: "
    return option + first["msg"].removeprefix("Value error, ")


def _ask(question: str, default: object, kind: Any, option: str) -> Any:
    """The answer on a terminal; elsewhere an error that names the option."""
    if not sys.stdin.isatty():
        raise AdvisorError(f"{option} is missing, and there is no terminal to ask on; pass it")
    return click.prompt(question, default=default, type=kind, err=True)


def _guess(metric: str) -> str:
    """The way in which a metric of this name is likely better."""
    from advisor.tracking.study.metric_names import direction_of

    return direction_of(metric) or "minimize"


def _parameter(text: str, what: Literal["tune", "fix", "compare"]) -> tuple[str, Parameter]:
    """The hyperparameter that an option gives, by its name."""
    from pydantic import ValidationError

    from advisor.model.spec import Parameter

    name, _, value = (part.strip() for part in text.partition("="))
    found = _RANGE.match(value)
    if not name or not value or (found and what != "tune"):
        raise AdvisorError(f"--{what} {text!r} is not of the form {_FORMS[what]}")
    try:
        if what == "fix":
            return name, Parameter(role="fixed", value=_value(value))
        if found:
            low, high = _number(found[1], text), _number(found[2], text)
            usual = _usual_scale(name, low)
            whole = low.is_integer() and high.is_integer() and "." not in found[1] + found[2] and usual == "linear"
            given = {"type": "int" if whole else "float", "low": low, "high": high, "scale": found[3] or usual}
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


def _usual_scale(name: str, low: float) -> Literal["linear", "log"]:
    """The scale of a range where none is given: orders of magnitude for learning rates, and for weight decay that is not 0."""
    from advisor.computed.space import kinds
    from advisor.model.space import is_learning_rate, words_of

    words = set(words_of(name))
    decays = kinds.is_regulariser(name) and bool(words & {"decay", "wd", "weightdecay", "l2"})
    return "log" if is_learning_rate(name) or (decays and low > 0) else "linear"


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


def _write(specs: Sequence[StudySpec], compared: str, stated: Collection[str], out: Path, *, force: bool) -> None:
    """One file for each study, all or none. stated: what options gave, which the training has to be told even where it is fixed."""
    from advisor.execution.command import option
    from advisor.model.spec_yaml import dump
    from advisor.system.atomic import write

    slugs = [] if len(specs) == 1 else _slugs([str(s.parameters[compared].value) for s in specs])
    files = [out.with_name(f"{out.stem}-{slug}{out.suffix or '.yaml'}") for slug in slugs] or [out]
    named = [
        s.model_copy(update={"study": f"{s.study}-{slug}"}) for s, slug in zip(specs, slugs, strict=False)
    ] or specs
    there = [str(f) for f in files if f.exists()]
    if there and not force:
        raise AdvisorError(f"{', '.join(there)} exists already; pass another file as --out, or --force to overwrite it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write({file.resolve(): dump(spec) for file, spec in zip(files, named, strict=True)})
    except OSError as error:
        raise AdvisorError(
            f"cannot write {str(out)!r}: {error.strerror or error}; pass another file as --out"
        ) from None
    for file, spec in zip(files, named, strict=True):
        click.echo(f"{file}: {spec.goal}")
    asked = [name for name, p in specs[0].parameters.items() if p.searched or name in stated]
    click.echo(f"\nadvisor run {shell.quote(str(files[0]))} -- python train.py {' '.join(map(option, asked))}")


def _slugs(values: Sequence[str]) -> list[str]:
    """What stands for each value in a file's name: letters, digits and dots; -1 and 1 are 1 and 1_2."""
    found: list[str] = []
    for value in values:
        slug = re.sub(r"[^A-Za-z0-9.]+", "_", value).strip("_") or "value"
        others = (f"{slug}_{number}" for number in range(2, len(values) + 2))
        taken = {other.lower() for other in found}  # some file systems do not tell cases apart
        found.append(slug if slug.lower() not in taken else next(o for o in others if o.lower() not in taken))
    return found
