"""The command that trains the next study: the best trial's command, with placeholders in place of hyperparameter values."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath

from advisor.contract.redact import redact_arguments
from advisor.model import formula, placeholders, space
from advisor.model.message import Code, Message, Name, list_message, say
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.report.model import NextStudy, ReportData
from advisor.report.text.headline import finding_before_study
from advisor.system import shell

_OPTION_PATTERN = re.compile(r"(?P<name>(?:--?|\+{0,2})[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
"""Pattern of an argument that names an option (`--lr`) or assigns a value to an option (`--lr=0.1`, `optimizer.lr=0.1`)."""
_NUMBER_PATTERN = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?")
_PYTHON_COMMAND_PATTERN = re.compile(
    r"(?:[^\n]*/)?python[\d.]*\n(?:-[uOBEsI]+\n)*(?:[^-\n][^\n]*\.py|-m\n(?!ipykernel)[A-Za-z][\w.]*)(?:\n|\Z)"
)
"""Pattern of a command, one argument per line, that runs a Python file or module."""
_DEFAULT_TRAINING_COMMAND = ("python", "train.py")
_MAX_COMPARED_COMMANDS = 100
_SEED_OPTIONS = {"seed", "random_seed"}


def has_recorded_command(study: Study) -> bool:
    return any(_command_arguments(t.facts.get("command", "")) for t in study.trials[:_MAX_COMPARED_COMMANDS])


def training_command(study: Study, spec: StudySpec) -> str:
    """Return the quoted command that trains one trial of `spec`, with placeholders in braces. The command is the recorded one with
    most of the study's hyperparameters (the best trial's at a tie), or `python train.py`. Options that the study needs and the
    command lacks are appended. Empty if one Optuna process ran all trials."""
    trials = (t for t in (*study.ranked(), *study.trials) if t.facts.get("command"))
    recorded = [(t, words) for t in islice(trials, _MAX_COMPARED_COMMANDS) if (words := _command_arguments(t.facts["command"]))]
    folder = common_output_folder([words for _, words in recorded])
    commands = [
        (t.params, list(_arguments_with_placeholders(words, t.params, spec, study.spec)), t.id)
        for t, words in ((t, with_separate_output_folder(words, t.id, folder)) for t, words in recorded)
    ]
    # Without a recorded command, an option's default is known only if all trials have the same value.
    default_command = (_constant_parameters(study), [(word, False) for word in _DEFAULT_TRAINING_COMMAND], "")
    params, filled, run_id = max(commands, key=lambda c: sum(braced for _, braced in c[1]), default=default_command)
    if any("tuner" in t.facts for t in study.trials[:1]) and not any(braced for _, braced in filled):
        return ""
    command = " ".join(word if braced else shell.quote_word(word) for word, braced in filled)
    command = command.replace(run_id, "{run_id}") if RUN_ID_PATTERN.fullmatch(run_id) else command
    before, now = placeholders.placeholder_values(study.spec), placeholders.placeholder_values(spec)
    changed_names = [n for n in placeholders.needed_placeholders(spec) if n == "seed" or now[n] != before.get(n)]
    required_names = [option for name in spec.searched for option in _parameters_to_pass(spec, name, command)]
    # The fixed value of a hyperparameter that was searched before may differ from the option's default.
    known = params.keys() | study.searched
    required_names += [n for n, p in spec.parameters.items() if p.value is not None and n in known and params.get(n) != p.value]
    # Runs outside the study had other values of these hyperparameters, so the options' defaults are unknown.
    required_names += [n for d in study.decisions for n in d.parameters if n in spec.parameters]
    missing_names = [n for n in dict.fromkeys((*required_names, *changed_names)) if f"{{{n}}}" not in command]
    return " ".join([command, *map(placeholders.command_option, missing_names)])


def _constant_parameters(study: Study) -> Mapping[str, space.HyperparameterValue]:
    trials = [t.params for t in study.trials]
    first_params = trials[0] if trials else {}
    return {n: v for n, v in first_params.items() if n not in study.searched and all(t.get(n) == v for t in trials)}


def _parameters_to_pass(spec: StudySpec, name: str, text: str) -> list[str]:
    """Return the hyperparameters that the command must pass for the searched hyperparameter `name`: if `name` stands for an
    expression, such as lr / (1 - momentum), those computed from `name`. Empty if the command already names one of them."""
    names_in_formulas = {n: formula.parse_formula(p.formula).names for n, p in spec.parameters.items() if p.formula is not None}
    derived_names = [n for n, names in names_in_formulas.items() if name in names]
    if spec.parameters[name].equals is not None:
        return derived_names
    replaced_names = {n for n, p in spec.parameters.items() if p.equals is not None}
    return [] if any(f"{{{n}}}" in text and not replaced_names & names_in_formulas[n] for n in derived_names) else [name]


def next_study_command(report: ReportData) -> str:
    """Return the command that runs the first of the next studies, or exports it to Optuna; empty if there is no next study."""
    study = next(iter(report.next_studies), None)
    if study is None:
        return ""
    study_path = shell.quote_word(PurePath(report.folder, "next", study.file).as_posix())
    if study.training_command:
        return f"advisor run {study_path} -- {study.training_command}"
    experiment = shell.quote_word(report.spec.study)
    return f"advisor export optuna {study_path} --experiment {experiment} --out {_optuna_script_name(study)}"


def _optuna_script_name(study: NextStudy) -> str:
    return f"study_round_{study.spec.round}.py"


def options_without_precedent(study: Study, training: str) -> tuple[str, ...]:
    """Return the options of the next study's command that no recorded command has: the training script may not know them."""
    logged_names = {name for trial in study.trials for name in trial.params}
    known = {*study.spec.parameters, *logged_names, *placeholders.placeholder_values(study.spec), "seed", "max_train_steps"}
    commands = [trial.facts.get("command", "") for trial in study.trials[:_MAX_COMPARED_COMMANDS]]
    known -= set(study.searched) if any(map(_command_arguments, commands)) else set()
    new = (n for n in re.findall(r"\{([^{}]+)\}", training) if n not in known and placeholders.command_option(n) in training)
    new_options = (placeholders.command_option(n).partition(" ")[0] for n in new)
    named_options = {word.partition("=")[0] for command in commands for word in command.split()}
    return tuple(o for o in dict.fromkeys(new_options) if o not in named_options)


def tasks_before_command(report: ReportData) -> tuple[Message, ...]:
    if not report.next_studies:
        return ()
    study = report.next_studies[0]
    tasks = [say("After that, run the next study.")] if finding_before_study(report) is not None else []
    if not study.has_recorded_command and study.training_command:
        task_text = "No trial recorded its training command: write your command in place of {plain}."
        tasks.append(say(task_text, plain=Code(" ".join(_DEFAULT_TRAINING_COMMAND))))
    if study.new_options:
        option_names = [Name(option) for option in study.new_options]
        them = "it" if len(option_names) == 1 else "them"
        task_text = "First make the training script accept {options}: no trial was started with {them}."
        tasks.append(say(task_text, options=list_message(option_names), them=them))
    return tuple(tasks)


def tasks_after_command(report: ReportData) -> tuple[Message, ...]:
    if not report.next_studies or report.next_studies[0].training_command:
        return ()
    script = Name(_optuna_script_name(report.next_studies[0]))
    return (say("Paste your training code into {script}, then start the script.", script=script),)


def _command_arguments(command: str) -> list[str]:
    """Return the arguments (argv) of a recorded command without secrets; the interpreter becomes `python`. Empty unless the command
    runs a Python file or module, because anybody who can log a run chooses the command, and readers may copy it."""
    try:
        words = list(redact_arguments(shlex.split(command)))
    except ValueError:  # the recorded command was truncated within quotes
        return []
    return ["python", *words[1:]] if _PYTHON_COMMAND_PATTERN.match("\n".join(words)) else []


def _arguments_with_placeholders(
    words: Sequence[str], params: Mapping[str, space.HyperparameterValue], spec: StudySpec, analysed: StudySpec
) -> Iterator[tuple[str, bool]]:
    """Yield (argument, whether it has a placeholder). analysed: the study whose trials recorded the command."""
    pending_option: str | None = None
    for word in words:
        option = _OPTION_PATTERN.fullmatch(word)
        if pending_option is not None and (option is None or option["value"] is not None or not word.startswith("-")):
            name = _option_placeholder(pending_option, word, params, spec, analysed)
            yield (f"{{{name}}}", True) if name else (_escape_braces(word), False)
            pending_option = None
            continue
        pending_option = None
        if option is None:
            candidates = spec.searched if _NUMBER_PATTERN.fullmatch(word) else ()
            matching_names = [n for n in candidates if _text_equals_value(word, params.get(n))]
            yield (f"{{{matching_names[0]}}}", True) if len(matching_names) == 1 else (_escape_braces(word), False)
        elif option["value"] is None:
            pending_option = option["name"] if word.startswith("-") else None
            yield _escape_braces(word), False
        else:
            name = _option_placeholder(option["name"], option["value"], params, spec, analysed)
            yield (f"{option['name']}={{{name}}}", True) if name else (_escape_braces(word), False)


def _option_placeholder(
    option: str, text: str, params: Mapping[str, space.HyperparameterValue], spec: StudySpec, analysed: StudySpec
) -> str | None:
    words = space.words_of_name(option)
    joined_words = "_".join(words)
    same_value = [n for n in spec.parameters if _text_equals_value(text, params.get(n))]
    matching_names = [n for n in spec.parameters if space.words_of_name(n) == words]
    if not matching_names:
        matching_names = [n for n in same_value if _longer_ends_with_shorter(space.words_of_name(n), words)]
    if not matching_names and space.is_learning_rate(joined_words):
        matching_names = [n for n in same_value if space.is_learning_rate(n)]
    if len(matching_names) == 1:
        return matching_names[0]
    if joined_words in _SEED_OPTIONS:
        return "seed"
    if spec.max_train_steps and space.is_training_length(joined_words) and _text_equals_value(text, analysed.max_train_steps):
        return "max_train_steps"
    return placeholders.SCHEDULE if _sets_schedule(words, text, spec, analysed) else None


def _sets_schedule(words: list[str], text: str, spec: StudySpec, analysed: StudySpec) -> bool:
    """Return whether `spec` sets the option's value, a kind of learning-rate schedule. Scripts may have other names for the kinds,
    so an option with another value than the study's kind counts only if the kind changes."""
    before, kind = ((s.schedule or {}).get("kind") for s in (analysed, spec))
    if kind is None or not (words == [placeholders.SCHEDULE] or space.is_transformers_schedule_name("_".join(words))):
        return False
    return _text_equals_value(text, before) or (words == [placeholders.SCHEDULE] and kind != before)


def _longer_ends_with_shorter(one: list[str], other: list[str]) -> bool:
    n = min(len(one), len(other))
    return n > 0 and one[-n:] == other[-n:]


def _text_equals_value(text: str, value: space.HyperparameterValue | None) -> bool:
    if value is None:
        return False
    if isinstance(value, bool | str):
        return text.lower() == str(value).lower()
    try:
        return abs(float(text) - space.as_number(value)) <= 1e-6 * abs(space.as_number(value))
    except ValueError:
        return False


def _escape_braces(word: str) -> str:
    """Return the argument with its braces doubled, because `advisor run` reads single braces as placeholders."""
    return word.replace("{", "{{").replace("}", "}}")


_OUTPUT_FOLDER_OPTIONS = {"output_dir", "out_dir", "save_dir"}
_TRANSFORMERS_OPTIONS = {"lr_scheduler_type", "per_device_train_batch_size"}
"""Options that identify a script with Transformers' TrainingArguments, which has a seed and an output folder, too."""
RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
"""Pattern of the id of an MLflow run. Ids from other stores may be unsuitable as folder names."""


def common_output_folder(commands: Sequence[Sequence[str]]) -> str | None:
    """Return the deepest folder that contains the output folders of all commands, or None if the folders have no common parent."""
    folders = [words[i] if at is None else words[i][at:] for words in commands for i, at in _output_folder_arguments(words)]
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # the list is empty, or contains both absolute and relative folders
        return None
    return common if common.strip("/") else None


def with_separate_output_folder(words: Sequence[str], run_id: str, folder: str | None) -> list[str]:
    """Return a run's command whose output folder is a subfolder of `folder` with the run's id as its name. A folder whose name
    contains a run id stays. A script with Transformers' options gets a missing seed or output folder, because the trainer's
    defaults are the same for every run."""
    if not RUN_ID_PATTERN.fullmatch(run_id):
        return list(words)
    new_words = list(words)
    for i, at in _output_folder_arguments(words):
        prefix, value = ("", words[i]) if at is None else (words[i][:at], words[i][at:])
        if not RUN_ID_PATTERN.search(value):
            new_words[i] = f"{prefix}{folder or value}/{run_id}"
    names = {name for word in words if (name := _option_name(word)) is not None}
    if any(word.startswith("--") and _option_name(word) in _TRANSFORMERS_OPTIONS for word in words):
        new_words += [] if "seed" in names else ["--seed", "0"]
        new_words += [] if names & _OUTPUT_FOLDER_OPTIONS else placeholders.TRAINER_OUTPUT_OPTION.format(run_id=run_id).split()
    return new_words


def _output_folder_arguments(words: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    """Yield (index, start) of each argument with an output folder. start: index of the folder's first character in an argument such
    as `--output-dir=FOLDER`, or None if the folder is the whole argument."""
    for i, word in enumerate(words):
        if _option_name(word) not in _OUTPUT_FOLDER_OPTIONS:
            continue
        if "=" in word:
            yield i, word.index("=") + 1
        elif i + 1 < len(words) and not words[i + 1].startswith("-"):
            yield i + 1, None


def _option_name(word: str) -> str | None:
    """Return an option's name (output_dir for `--output-dir` and `output_dir=out`), or None if the word is no option."""
    if not word.startswith("-") and "=" not in word:
        return None
    return "_".join(space.words_of_name(word.partition("=")[0]))
