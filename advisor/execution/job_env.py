"""What a job is given: its words, its environment, its folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from advisor.execution import command
from advisor.execution.jobs import Job
from advisor.model import formula
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import Location, from_anywhere

OUT = Path("advisor-runs")


def check(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> None:
    """Raises AdvisorError for a placeholder of the command that nothing will fill, and for a searched hyperparameter left out.

    append: False if the training reads the hyperparameters from its environment, where all of them are.
    """
    if any("\0" in text for text in _texts(spec)):
        raise AdvisorError("the study holds a text with a zero byte, which no command line takes; take it out")
    command.check(words, spec.parameters, {*_given(spec), "trial", "seed", "json", "args", "run_id"})
    if append:
        command.check_all(words, _stand_ins(spec), spec.parameters)


def _texts(spec: StudySpec) -> Iterator[str]:
    """What may become a word of a command."""
    yield spec.study
    for name, parameter in spec.parameters.items():
        yield name
        yield from (v for v in (parameter.value, *parameter.options) if isinstance(v, str))


def _stand_ins(spec: StudySpec) -> dict[str, str]:
    """For each searched hyperparameter the derived one that is computed from it and named most like it, or itself.

    A training that knows `learning_rate` need not know of the `effective_learning_rate` that is searched in its place.
    """
    found = {name: name for name in spec.searched}
    for derived, parameter in spec.parameters.items():
        made_of = formula.parse(parameter.formula).names if parameter.formula is not None else frozenset()
        free = [name for name in found if name in made_of and found[name] == name]
        if free:
            found[max(free, key=lambda n: SequenceMatcher(None, n, derived).ratio())] = derived
    return found


def words_of(
    spec: StudySpec, job: Job, words: Sequence[str], file: Path, run_id: str = "RUN_ID", *, append: bool = True
) -> list[str]:
    """The command of one job; `file` holds its hyperparameters."""
    given = {"trial": str(job.number), "seed": str(job.seed), "json": str(file.resolve()), "run_id": run_id}
    return command.fill(words, job.params, {**_given(spec), **given}, append=append)


def environment_of(spec: StudySpec, job: Job, run_id: str, location: Location, experiment: str) -> dict[str, str]:
    """What the training finds in its environment: enough for MLflow and our hook to log into the job's run."""
    return {
        "MLFLOW_TRACKING_URI": from_anywhere(location),
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_NAME": experiment,
        "ADVISOR_STUDY": spec.study,
        "ADVISOR_TRIAL": str(job.number),
        "ADVISOR_SEED": str(job.seed),
        "ADVISOR_PARAMS": job.params_json(),
        **{f"ADVISOR_{name.upper()}": value for name, value in _given(spec).items() if name != "study"},
    }


def _given(spec: StudySpec) -> dict[str, str]:
    """Placeholders that are the same in all jobs."""
    found: dict[str, Any] = {
        "study": spec.study,
        "max_train_steps": spec.max_train_steps,
        "evaluate_every": spec.evaluate_every,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def folder_of(base: Path | None, study: str) -> Path:
    """Where a study's output goes: a folder of its own in `base` (None: `OUT`), also where its name cannot be a folder's."""
    name = re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study"
    return (OUT if base is None else base) / (
        name if name == study else f"{name}-{hashlib.sha256(study.encode()).hexdigest()[:6]}"
    )


def make_private(folder: Path) -> None:
    """Make a folder, or close the one that is there, to all but its owner: what trainings print may hold a password."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):  # it is another account's, or the file system has no modes
        folder.chmod(0o700)
