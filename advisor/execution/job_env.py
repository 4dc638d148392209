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
"""Placeholders for values other than hyperparameters. A hyperparameter of the same name takes precedence."""
_MAX_FINGERPRINTED_FILE_BYTES = 1_000_000
"""Maximum bytes of a file whose content is part of the command's fingerprint; larger files are probably data."""
_PLACEHOLDER_PATTERN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w./-]*)\}")


def check_command(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> None:
    """Raise AdvisorError if the command has an unknown placeholder or does not pass a searched hyperparameter. append: if
    False, the training script reads hyperparameters from environment variables, so the command need not pass them."""
    values = [value for parameter in spec.parameters.values() for value in (parameter.value, *parameter.options)]
    if any("\0" in text for text in (spec.study, *spec.parameters, *(v for v in values if isinstance(v, str)))):
        raise AdvisorError("the study contains a text with a zero byte, which no command line can pass; remove the zero byte")
    known_placeholders = {*placeholder_values(spec), "trial", "seed", "json", "args", "run_id"}
    _check_placeholders(words, {*spec.parameters, *known_placeholders})
    if append:
        names = placeholder_names(words)
        passes_all_names = must_append_hyperparameters(words, spec.parameters) or "{args}" in words or "json" in names
        passed_names = {} if passes_all_names else _derived_hyperparameters(spec)
        if missing_names := [substitute for name, substitute in passed_names.items() if not {name, substitute} & names]:
            options = " ".join(command_option(name) for name in missing_names)
            raise AdvisorError(
                f"the command does not pass {', '.join(missing_names)}, which the study searches; add {options}, or "
                "{{args}} for all hyperparameters, or pass --no-args if the training reads ADVISOR_PARAMS from its environment"
            )
        if "seed" in unpassed_study_settings(spec, words):
            raise AdvisorError(
                f"the study repeats each trial with {spec.seeds} seeds, but the command does not pass the seed; add "
                "--seed {seed}, or pass --no-args if the training reads ADVISOR_SEED from its environment"
            )


def command_warnings(spec: StudySpec, words: Sequence[str], *, append: bool = True) -> list[str]:
    """Return a warning if the command does not pass a training length or schedule that the study sets; else an empty list."""
    missing_names = [name for name in unpassed_study_settings(spec, words) if name != "seed"] if append else []
    if not missing_names:
        return []
    values = placeholder_values(spec)
    settings_text = ", ".join(f"{name} {values[name]}" for name in missing_names)
    variables_text = " and ".join(dict.fromkeys(f"ADVISOR_{name.partition('.')[0].upper()}" for name in missing_names))
    pronoun = "it" if len(missing_names) == 1 else "them"
    return [
        f"The study sets {settings_text}, and the command does not pass {pronoun}. Go on if the "
        f"training has the same default or reads {variables_text} from its environment. Otherwise add an option, such as "
        f"{' '.join(map(command_option, missing_names))}."
    ]


def command_passes_seed(spec: StudySpec, words: Sequence[str]) -> bool:
    return "seed" not in unpassed_study_settings(spec.model_copy(update={"seeds": 2}), words)


def unpassed_study_settings(spec: StudySpec, words: Sequence[str]) -> list[str]:
    """Return the study settings, such as `max_train_steps`, that the command contains neither by placeholder nor literally."""
    values, passed = placeholder_values(spec), placeholder_names(words)
    command_parts = {part for word in words for part in re.split(r"[=\s]", word)}
    return [n for n in needed_placeholders(spec) if n not in passed and values.get(n) not in command_parts]


def _derived_hyperparameters(spec: StudySpec) -> dict[str, str]:
    """Map each searched hyperparameter to the hyperparameter that is derived from it, or to itself if there is none. Of several
    derived hyperparameters, take the one with the most similar name."""
    substitutes = {name: name for name in spec.searched}
    for derived, parameter in spec.parameters.items():
        formula_inputs = formula.parse_formula(parameter.formula).names if parameter.formula is not None else frozenset()
        unsubstituted_inputs = [name for name in substitutes if name in formula_inputs and substitutes[name] == name]
        if unsubstituted_inputs:
            substitutes[max(unsubstituted_inputs, key=lambda n: SequenceMatcher(None, n, derived).ratio())] = derived
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
    """Return the study's output folder, which lies in `base` (None: `DEFAULT_OUTPUT_FOLDER`) and differs by study name."""
    name = re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study"
    if re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name):  # Windows reserves these names for devices
        name = f"study-{name}"
    suffix = "" if name == study else f"-{hashlib.sha256(study.encode()).hexdigest()[:6]}"
    return (DEFAULT_OUTPUT_FOLDER if base is None else base) / f"{name}{suffix}"


def create_private_folder(folder: Path) -> None:
    """Create the folder if necessary, without access for other users, because training output may contain passwords."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The folder may belong to another user, or the file system may not support permissions.
    with suppress(PermissionError):
        folder.chmod(0o700)


def placeholder_names(words: Iterable[str]) -> set[str]:
    return {m.group(1) for word in words for m in _PLACEHOLDER_PATTERN.finditer(word) if m.group(1)}


def _check_placeholders(words: Sequence[str], known: set[str]) -> None:
    for name in sorted(placeholder_names(words) - known):
        if name.partition(".")[0] in BUILT_IN_PLACEHOLDERS:
            raise AdvisorError(f"the command asks for {{{name}}}, which the study file does not set; add it to the file")
        similar_names = get_close_matches(name, known, n=1)
        hint = f"did you mean {{{similar_names[0]}}}?" if similar_names else f"the placeholders are {', '.join(sorted(known))}"
        raise AdvisorError(f"the command asks for {{{name}}}, which is no hyperparameter of the study; {hint}")


def must_append_hyperparameters(words: Sequence[str], parameters: Iterable[str]) -> bool:
    """Return True if the command has no placeholder for any hyperparameter, so that all hyperparameters must be appended."""
    names = {n.partition(".")[0] if n.startswith(f"{SCHEDULE}.") else n for n in placeholder_names(words)}
    return names <= set(BUILT_IN_PLACEHOLDERS) - {"json", "args"} - set(parameters)


def fill_placeholders(
    words: Sequence[str], params: Mapping[str, HyperparameterValue], built_in: Mapping[str, str], *, append: bool = True
) -> list[str]:
    """Return the command line of a job. append: append all hyperparameters if the command has no placeholder for any of them.
    If a placeholder has no value, its word is omitted together with the option before it, as in `--momentum {momentum}`."""
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
    """If the training script rejected options with underscores, return a hint to use dashes; else an empty text."""
    if not re.search("unrecognized arguments|no such option", error, re.I):
        return ""
    rejected_names = [n for n in parameters if "_" in n and re.search(rf"--{re.escape(n)}(?![\w-])", error)]
    options = [command_option(name) for name in rejected_names]
    return f"if the script spells options with dashes, do so, too: {' '.join(options)}" if options else ""


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
