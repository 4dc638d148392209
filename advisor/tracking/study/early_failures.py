"""Recognises failures before the first step: launches, which no hyperparameter causes, and memory, which some do."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from advisor import contract
from advisor.model.parameter_kinds import is_batch_size
from advisor.model.reading import Decision
from advisor.model.space import BoolArray, Params, as_number
from advisor.model.study import CurveBlocks
from advisor.model.words import clean, setting
from advisor.tracking.runs import Run
from advisor.tracking.study.metric_names import is_window_or_system_metric

_PROGRAM_ERROR_PATTERN = re.compile(
    r"\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError|FileNotFoundError|NotADirectoryError|PermissionError"
    r"|ConnectionError)\b|unrecognized arguments|arguments are required|no such option|can't open file|command not found"
    r"|exit status 12[67]\b",
    re.I,
)
"""Errors in a program, its command line or its machine, which do not depend on hyperparameters."""
_MAX_P_VALUE = 0.01
"""Maximum probability that random failures hit exactly the trials with the largest batch sizes."""


def find_launch_failures(
    runs: Sequence[Run], blocks: CurveBlocks, errors: Mapping[int, str], crashed: Iterable[int]
) -> list[int]:
    """Return the crashed trials that logged nothing because of the program, its command line or its machine. Either the error
    shows this, or no trial with the same `advisor run` command logged anything, while trials with other commands did. errors:
    logged error texts by trial index."""
    is_silent = ~has_training_metrics(blocks, len(runs))
    commands = [_command_fingerprint(run) for run in runs]
    successes = {command for command, nothing in zip(commands, is_silent, strict=True) if command is not None and not nothing}
    failures = []
    for trial in crashed:
        command, error = commands[trial], errors.get(trial, "")
        bad_command = bool(successes) and command is not None and command not in successes
        if is_silent[trial] and not error.startswith("out of memory") and (bad_command or _PROGRAM_ERROR_PATTERN.search(error)):
            failures.append(trial)
    return failures


def find_memory_failures(
    blocks: CurveBlocks, params: Sequence[Params], crashed: Iterable[int], started: Sequence[float | None]
) -> tuple[dict[int, str], list[Decision]]:
    """Return (out-of-memory error text by trial index, decision about them) for trials that probably ran out of memory.
    crashed: trials that failed without an error text; started: start times. If no trial trained after the first failure, the
    store, the disk or the machine may have failed."""
    is_silent = ~has_training_metrics(blocks, len(params))
    failed_trials = [i for i in crashed if is_silent[i]]
    for name in sorted({n for p in params for n in p if is_batch_size(n)}):
        sizes = [as_number(p.get(name, math.nan)) for p in params]
        failing = [i for i in failed_trials if math.isfinite(sizes[i])]
        trained = [i for i in range(len(params)) if not is_silent[i] and math.isfinite(sizes[i])]
        if not failing or not trained or 1 / math.comb(len(failing) + len(trained), len(failing)) > _MAX_P_VALUE:
            continue
        limit = min(sizes[i] for i in failing)
        failures = [start for i in failing if (start := started[i]) is not None]
        trained_later = any(failures and (start := started[i]) is not None and start > min(failures) for i in trained)
        if trained_later and max(sizes[i] for i in trained) < limit:
            size_text = f"{clean(name)} of {setting(limit)} or more"
            subject = f"{len(failing)} of {len(params)} trials probably ran out of memory"
            text = f"{subject}: they failed before they logged anything, and only with {size_text}."
            reason = f"out of memory, probably: no trial with {size_text} logged anything"
            return dict.fromkeys(failing, reason), [Decision(topic="status", text=text)]
    return {}, []


def has_training_metrics(blocks: CurveBlocks, trials: int) -> BoolArray:
    """Return a mask of shape (trials,) of the trials that logged a training metric."""
    has_points = np.zeros(trials, dtype=np.bool_)
    for metric, block in blocks.items():
        if not (is_window_or_system_metric(metric) or metric.startswith("device/")):
            has_points |= np.diff(block.offsets) > 0
    return has_points


def _command_fingerprint(run: Run) -> str | None:
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        command = json.loads(run.tags[contract.TAG_LAUNCH]).get("command") if contract.TAG_LAUNCH in run.tags else None
        return command if isinstance(command, str) else None
    return None
