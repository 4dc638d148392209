"""Builds the command, the environment variables and the output folder of a job."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path

from advisor.execution import command
from advisor.execution.job import Job
from advisor.model import formula, placeholders
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import StoreLocation, absolute_uri

DEFAULT_OUTPUT_FOLDER = Path("advisor-runs")
_NUMERIC_PLACEHOLDERS = ("max_train_steps", "evaluate_every")


def check_command(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> None:
    """Raise AdvisorError if the command has an unknown placeholder or does not pass a searched hyperparameter.

    append: False if the training script reads hyperparameters from environment variables.
    """
    values = [value for parameter in spec.parameters.values() for value in (parameter.value, *parameter.options)]
    if any("\0" in text for text in (spec.study, *spec.parameters, *(v for v in values if isinstance(v, str)))):
        raise AdvisorError("the study contains a text with a zero byte, which no command line can pass; remove it")
    command.check_placeholders(
        words, spec.parameters, {*placeholders.placeholder_values(spec), "trial", "seed", "json", "args", "run_id"}
    )
    if append:
        command.check_passes_searched(words, _derived_hyperparameters(spec), spec.parameters)
        if "seed" in unpassed_study_settings(spec, words):
            raise AdvisorError(
                f"the study repeats each trial with {spec.seeds} seeds, and the command does not pass them; add --seed {{seed}}, "
                "or pass --no-args if the training reads ADVISOR_SEED from its environment"
            )


def command_warnings(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> list[str]:
    """Return a list with at most one warning: the command does not pass a training length or schedule that the study sets."""
    missing = [name for name in unpassed_study_settings(spec, words) if name != "seed"] if append else []
    if not missing:
        return []
    values = placeholders.placeholder_values(spec)
    named = ", ".join(f"{name} {values[name]}" for name in missing)
    variables = " and ".join(dict.fromkeys(f"ADVISOR_{name.partition('.')[0].upper()}" for name in missing))
    return [
        f"The study sets {named}, and the command does not pass {'it' if len(missing) == 1 else 'them'}. Go on if that is the "
        f"training's default or if it reads {variables} from its environment. Otherwise add an option, such as "
        f"{' '.join(map(placeholders.command_option, missing))}."
    ]


def command_passes_seed(spec: StudySpec, words: Sequence[str]) -> bool:
    return "seed" not in unpassed_study_settings(spec.model_copy(update={"seeds": 2}), words)


def unpassed_study_settings(spec: StudySpec, words: Sequence[str]) -> list[str]:
    """Return the study settings, such as `max_train_steps`, that the command passes neither by placeholder nor literally."""
    values, passed = placeholders.placeholder_values(spec), command.placeholder_names(words)
    stated = {part for word in words for part in re.split(r"[=\s]", word)}
    return [n for n in placeholders.needed_placeholders(spec) if n not in passed and values.get(n) not in stated]


def _derived_hyperparameters(spec: StudySpec) -> dict[str, str]:
    """Map each searched hyperparameter to the derived one with the most similar name, or to itself if none is derived from it:
    the study may search `effective_learning_rate`, but the training script may accept only the derived `learning_rate`."""
    substitutes = {name: name for name in spec.searched}
    for derived, parameter in spec.parameters.items():
        inputs = formula.parse_formula(parameter.formula).names if parameter.formula is not None else frozenset()
        free = [name for name in substitutes if name in inputs and substitutes[name] == name]
        if free:
            substitutes[max(free, key=lambda n: SequenceMatcher(None, n, derived).ratio())] = derived
    return substitutes


def job_command(
    spec: StudySpec, job: Job, words: Sequence[str], file: Path, run_id: str = "RUN_ID", *, append: bool = True
) -> list[str]:
    """Return the command line of a job. file: path of the file that contains the job's hyperparameters."""
    job_values = {"trial": str(job.number), "seed": str(job.seed), "json": str(file.resolve()), "run_id": run_id}
    return command.fill_placeholders(words, job.params, {**placeholders.placeholder_values(spec), **job_values}, append=append)


def job_environment(spec: StudySpec, job: Job, run_id: str, location: StoreLocation, experiment: str) -> dict[str, str]:
    """Return the environment variables that make MLflow and our training hook log to the run of the job."""
    values = placeholders.placeholder_values(spec)
    return {
        "MLFLOW_TRACKING_URI": absolute_uri(location),
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_NAME": experiment,
        "ADVISOR_STUDY": spec.study,
        "ADVISOR_TRIAL": str(job.number),
        "ADVISOR_SEED": str(job.seed),
        "ADVISOR_PARAMS": job.params_json(),
        **{f"ADVISOR_{name.upper()}": values[name] for name in _NUMERIC_PLACEHOLDERS if values.get(name)},
        **({"ADVISOR_SCHEDULE": json.dumps(dict(spec.schedule))} if spec.schedule else {}),
    }


_WINDOWS_RESERVED_NAMES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def study_folder(base: Path | None, study: str) -> Path:
    """Return the study's output folder in `base` (None: `DEFAULT_OUTPUT_FOLDER`), another one for each study name."""
    name = re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study"
    if _WINDOWS_RESERVED_NAMES.fullmatch(name):
        name = f"study-{name}"
    suffix = "" if name == study else f"-{hashlib.sha256(study.encode()).hexdigest()[:6]}"
    return (DEFAULT_OUTPUT_FOLDER if base is None else base) / f"{name}{suffix}"


def create_private_folder(folder: Path) -> None:
    """Create the folder if necessary, closed to other users, because training output may contain passwords."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The folder may belong to another user, or the file system may lack permissions.
    with suppress(PermissionError):
        folder.chmod(0o700)
