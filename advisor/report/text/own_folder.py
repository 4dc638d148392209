"""Gives each run of a recorded command its own output folder and seed, so that runs do not overwrite each other's checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from advisor.model import placeholders
from advisor.model.space import words_of_name

_OUTPUT_FOLDER_OPTIONS = {"output_dir", "out_dir", "save_dir"}
"""Names of options that set the output folder of a training."""
_TRANSFORMERS_OPTIONS = {"lr_scheduler_type", "per_device_train_batch_size"}
"""Names of options that identify a script that parses Transformers' TrainingArguments. Scripts that parse TrainingArguments
also accept options for a seed and an output folder."""
RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
"""Pattern of the id of an MLflow run. Ids from other stores may be unsuitable as folder names."""


def common_output_folder(commands: Sequence[Sequence[str]]) -> str | None:
    """Return the deepest folder that contains the output folders of all commands; None if the folders have no common parent."""
    folders = [words[i] if at is None else words[i][at:] for words in commands for i, at in _output_folder_arguments(words)]
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # there is no folder, or folders are both absolute and relative
        return None
    return common if common.strip("/") else None


def with_separate_output_folder(words: Sequence[str], run_id: str, folder: str | None) -> list[str]:
    """Return a run's command with its output folder replaced by a subfolder of `folder` named after the run. A folder whose
    name contains a run id stays. A script with Transformers' options gets a missing seed or output folder, because the
    trainer's defaults are the same for every run."""
    if not RUN_ID_PATTERN.fullmatch(run_id):
        return list(words)
    completed = list(words)
    for i, at in _output_folder_arguments(words):
        prefix, value = ("", words[i]) if at is None else (words[i][:at], words[i][at:])
        if not RUN_ID_PATTERN.search(value):
            completed[i] = f"{prefix}{folder or value}/{run_id}"
    names = {name for word in words if (name := _option_name(word)) is not None}
    if any(word.startswith("--") and _option_name(word) in _TRANSFORMERS_OPTIONS for word in words):
        completed += [] if "seed" in names else ["--seed", "0"]
        completed += [] if names & _OUTPUT_FOLDER_OPTIONS else placeholders.TRAINER_OUTPUT_OPTION.format(run_id=run_id).split()
    return completed


def _output_folder_arguments(words: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    """Yield (index, start) of each output folder. start: where it begins in an argument such as `--output-dir=FOLDER`; None if
    it is the whole argument."""
    for i, word in enumerate(words):
        if _option_name(word) not in _OUTPUT_FOLDER_OPTIONS:
            continue
        if "=" in word:
            yield i, word.index("=") + 1
        elif i + 1 < len(words) and not words[i + 1].startswith("-"):
            yield i + 1, None


def _option_name(word: str) -> str | None:
    """Return an option's name: output_dir for `--output-dir` and `output_dir=out`; None if this is no option."""
    if not word.startswith("-") and "=" not in word:
        return None
    return "_".join(words_of_name(word.partition("=")[0]))
