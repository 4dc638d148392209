"""Builds the command, the environment variables and the output folder of a job. `{{` and `}}` in commands are literal braces."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from advisor.execution.job import Job
from advisor.model import formula
from advisor.model.errors import AdvisorError
from advisor.model.placeholders import SCHEDULE, command_option, needed_placeholders, placeholder_values
from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import StoreLocation, absolute_uri

DEFAULT_OUTPUT_FOLDER = Path("advisor-runs")
BUILT_IN_PLACEHOLDERS = ("trial", "seed", "json", "args", "study", "run_id", "max_train_steps", "evaluate_every", SCHEDULE)
"""Placeholders that do not stand for hyperparameters. A hyperparameter with the same name takes precedence."""
_MAX_FINGERPRINTED_FILE_BYTES = 1_000_000
"""Maximum size in bytes of a named file that counts in the command's fingerprint; larger ones are assumed to be data."""
_PLACEHOLDER_PATTERN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w./-]*)\}")


def check_command(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> None:
    """Raise AdvisorError if the command has an unknown placeholder or does not pass a searched hyperparameter, unless `append` is
    False, because the training script reads hyperparameters from environment variables."""
    values = [value for parameter in spec.parameters.values() for value in (parameter.value, *parameter.options)]
    if any("\0" in text for text in (spec.study, *spec.parameters, *(v for v in values if isinstance(v, str)))):
        raise AdvisorError("the study contains a text with a zero byte, which no command line can pass; remove it")
    available = {*placeholder_values(spec), "trial", "seed", "json", "args", "run_id"}
    _check_placeholders(words, {*spec.parameters, *available})
    if append:
        names = placeholder_names(words)
        passes_all = must_append_hyperparameters(words, spec.parameters) or "{args}" in words or "json" in names
        searched = {} if passes_all else _derived_hyperparameters(spec)
        if missing := [substitute for name, substitute in searched.items() if not {name, substitute} & names]:
            options = " ".join(command_option(name) for name in missing)
            raise AdvisorError(
                f"the command does not pass {', '.join(missing)}, which the study searches; add {options}, or a word {{args}} "
                "for all, or pass --no-args if the training reads ADVISOR_PARAMS from its environment"
            )
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
    values = placeholder_values(spec)
    named = ", ".join(f"{name} {values[name]}" for name in missing)
    variables = " and ".join(dict.fromkeys(f"ADVISOR_{name.partition('.')[0].upper()}" for name in missing))
    return [
        f"The study sets {named}, and the command does not pass {'it' if len(missing) == 1 else 'them'}. Go on if that is the "
        f"training's default or if it reads {variables} from its environment. Otherwise add an option, such as "
        f"{' '.join(map(command_option, missing))}."
    ]


def command_passes_seed(spec: StudySpec, words: Sequence[str]) -> bool:
    return "seed" not in unpassed_study_settings(spec.model_copy(update={"seeds": 2}), words)


def unpassed_study_settings(spec: StudySpec, words: Sequence[str]) -> list[str]:
    """Return the study settings, such as `max_train_steps`, that the command passes neither by placeholder nor literally."""
    values, passed = placeholder_values(spec), placeholder_names(words)
    stated = {part for word in words for part in re.split(r"[=\s]", word)}
    return [n for n in needed_placeholders(spec) if n not in passed and values.get(n) not in stated]


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
    return fill_placeholders(words, job.params, {**placeholder_values(spec), **job_values}, append=append)


def job_environment(spec: StudySpec, job: Job, run_id: str, location: StoreLocation, experiment: str) -> dict[str, str]:
    """Return the environment variables that make MLflow and our training hook log to the run of the job."""
    values = placeholder_values(spec)
    return {
        "MLFLOW_TRACKING_URI": absolute_uri(location),
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_NAME": experiment,
        "ADVISOR_STUDY": spec.study,
        "ADVISOR_TRIAL": str(job.number),
        "ADVISOR_SEED": str(job.seed),
        "ADVISOR_PARAMS": job.params_json(),
        **{f"ADVISOR_{name.upper()}": values[name] for name in ("max_train_steps", "evaluate_every") if values.get(name)},
        **({"ADVISOR_SCHEDULE": json.dumps(dict(spec.schedule))} if spec.schedule else {}),
    }


def study_folder(base: Path | None, study: str) -> Path:
    """Return the study's output folder in `base` (None: `DEFAULT_OUTPUT_FOLDER`), another one for each study name."""
    name = re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study"
    if re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name):  # Windows reserves these names for devices
        name = f"study-{name}"
    suffix = "" if name == study else f"-{hashlib.sha256(study.encode()).hexdigest()[:6]}"
    return (DEFAULT_OUTPUT_FOLDER if base is None else base) / f"{name}{suffix}"


def create_private_folder(folder: Path) -> None:
    """Create the folder if necessary, closed to other users, because training output may contain passwords."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The folder may belong to another user, or the file system may lack permissions.
    with suppress(PermissionError):
        folder.chmod(0o700)


def placeholder_names(words: Iterable[str]) -> set[str]:
    return {m.group(1) for word in words for m in _PLACEHOLDER_PATTERN.finditer(word) if m.group(1)}


def _check_placeholders(words: Sequence[str], known: set[str]) -> None:
    for name in sorted(placeholder_names(words) - known):
        if name.partition(".")[0] in BUILT_IN_PLACEHOLDERS:
            raise AdvisorError(f"the command asks for {{{name}}}, which the study does not say; add it to the study file")
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {{{close[0]}}}?" if close else f"the placeholders are {', '.join(sorted(known))}"
        raise AdvisorError(f"the command asks for {{{name}}}, which is no hyperparameter of the study; {hint}")


def must_append_hyperparameters(words: Sequence[str], parameters: Iterable[str]) -> bool:
    """Return True if the command has no placeholder for any hyperparameter, so that all must be appended."""
    names = {n.partition(".")[0] if n.startswith(f"{SCHEDULE}.") else n for n in placeholder_names(words)}
    return names <= set(BUILT_IN_PLACEHOLDERS) - {"json", "args"} - set(parameters)


def fill_placeholders(
    words: Sequence[str], params: Mapping[str, HyperparameterValue], built_in: Mapping[str, str], *, append: bool = True
) -> list[str]:
    """Return the command line of a job. append: append all hyperparameters if the command has no placeholder for any of them.
    Without a value, the word is omitted, also with the option before it, as in `--momentum {momentum}`."""
    texts = {name: command_line_value(value) for name, value in params.items()}
    values, options = {**built_in, **texts}, [word for name, text in texts.items() for word in (f"--{name}", text)]

    def fill(word: str) -> str:
        return _PLACEHOLDER_PATTERN.sub(lambda match: values[match[1]] if match[1] else match[0][0], word)

    if append and must_append_hyperparameters(words, params):
        return [*map(fill, words), *options]
    out: list[str] = []
    for word in words:
        if word == "{args}" and "args" not in params:
            out += options
        elif placeholder_names([word]) <= set(values):
            out.append(fill(word))
        elif out and re.fullmatch(r"\{[^{}]+\}", word) and re.fullmatch(r"--?[A-Za-z][^=\s]*", out[-1]):
            out.pop()
    return out


def unknown_option_hint(error: str, parameters: Iterable[str]) -> str:
    """Return how to spell hyperparameters with dashes, for a training that rejected options with underscores; else empty."""
    if not re.search("unrecognized arguments|no such option", error, re.I):
        return ""
    rejected = [n for n in parameters if "_" in n and re.search(rf"--{re.escape(n)}(?![\w-])", error)]
    options = [command_option(name) for name in rejected]
    return f"if its options have dashes, write them yourself: {' '.join(options)}" if options else ""


def command_fingerprint(words: Sequence[str]) -> str:
    """Return a digest of the command and of the scripts and configuration files that it names."""
    digest = hashlib.sha256("\0".join(words).encode(errors="surrogateescape"))
    for part in (part for word in words for part in word.split("=")):
        with suppress(OSError, ValueError):  # the word of the command is not a path
            path = Path(part)
            if path.is_file() and path.stat().st_size <= _MAX_FINGERPRINTED_FILE_BYTES:
                digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def command_line_value(value: HyperparameterValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
