"""Recognises trials whose launch failed. These trials ended before the first step, for a reason that no hyperparameter can
cause.

Trials whose launch failed say nothing about the search space. Running out of memory is not a launch failure, because it depends
on hyperparameters even before the first step. Other crashes may depend on hyperparameters, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from advisor import contract
from advisor.model.space import BoolArray
from advisor.model.study import CurveBlock
from advisor.tracking.runs import Run
from advisor.tracking.study.metric_names import is_window_or_system_metric

_PROGRAM_ERROR_PATTERN = re.compile(
    r"\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError|FileNotFoundError|NotADirectoryError|PermissionError"
    r"|ConnectionError)\b|unrecognized arguments|arguments are required|no such option|can't open file|command not found"
    r"|exit status 12[67]\b",
    re.I,
)
"""Pattern for errors in a program, its command line or its machine, which do not depend on hyperparameters."""


def find_launch_failures(
    runs: Sequence[Run], blocks: Mapping[str, CurveBlock], errors: Mapping[int, str], crashed: Iterable[int]
) -> list[int]:
    """Return the crashed trials whose launch failed. errors: error text by trial index, for trials that logged an error.

    A launch failed if the trial logged nothing and its error is an error in the program, its command line or its machine. A
    launch also failed if no trial with the same `advisor run` command logged anything, although trials with another command
    did.
    """
    silent = ~has_training_metrics(blocks, len(runs))
    commands = [_command_fingerprint(run) for run in runs]
    good = {command for command, nothing in zip(commands, silent, strict=True) if command is not None and not nothing}
    failures = []
    for trial in crashed:
        command, error = commands[trial], errors.get(trial, "")
        bad_command = bool(good) and command is not None and command not in good
        if silent[trial] and not error.startswith("out of memory") and (bad_command or _PROGRAM_ERROR_PATTERN.search(error)):
            failures.append(trial)
    return failures


def has_training_metrics(blocks: Mapping[str, CurveBlock], trials: int) -> BoolArray:
    """Return a mask of shape (trials,) of the trials that logged at least one training metric."""
    has_training_metrics = np.zeros(trials, dtype=np.bool_)
    for metric, block in blocks.items():
        if not (is_window_or_system_metric(metric) or metric.startswith("device/")):
            has_training_metrics |= np.diff(block.offsets) > 0
    return has_training_metrics


def _command_fingerprint(run: Run) -> str | None:
    """Return the fingerprint of the command with which `advisor run` launched the run; None if `advisor run` did not launch it."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        command = json.loads(run.tags[contract.TAG_LAUNCH]).get("command") if contract.TAG_LAUNCH in run.tags else None
        return command if isinstance(command, str) else None
    return None
