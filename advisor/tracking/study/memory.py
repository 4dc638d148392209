"""Recognises trials that probably ran out of memory: they failed before they logged anything, and only at large batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from advisor.model.parameter_kinds import is_batch_size
from advisor.model.reading import Decision
from advisor.model.space import HyperparameterValue, as_number
from advisor.model.study import CurveBlock
from advisor.model.words import clean, setting
from advisor.tracking.study.launch_failures import has_training_metrics

_TEST_LEVEL = 0.01
"""Maximum p-value: the probability that random failures hit exactly the trials with the largest batch sizes."""


def find_memory_failures(
    blocks: Mapping[str, CurveBlock],
    params: Sequence[Mapping[str, HyperparameterValue]],
    crashed: Iterable[int],
    started: Sequence[float | None],
) -> tuple[dict[int, str], list[Decision]]:
    """Return (out-of-memory error text by trial index, decision about these trials) for trials that probably ran out of memory.

    params: hyperparameters of each trial; crashed: trials that failed without an error text; started: start time of each trial.
    If no trial trained after the first failure, the cause may be a failure of the store, the disk or the machine.
    """
    silent = ~has_training_metrics(blocks, len(params))
    failed = [i for i in crashed if silent[i]]
    for name in sorted({n for p in params for n in p if is_batch_size(n)}):
        sizes = [as_number(p.get(name, math.nan)) for p in params]
        lacking = [i for i in failed if math.isfinite(sizes[i])]
        fine = [i for i in range(len(params)) if not silent[i] and math.isfinite(sizes[i])]
        if not lacking or not fine or 1 / math.comb(len(lacking) + len(fine), len(lacking)) > _TEST_LEVEL:
            continue
        limit = min(sizes[i] for i in lacking)
        if not _has_trained_later(fine, lacking, started):
            continue
        if max(sizes[i] for i in fine) < limit:
            where = f"{clean(name)} of {setting(limit)} or more"
            text = f"out of memory, probably: no trial with {where} logged anything"
            return dict.fromkeys(lacking, text), [_out_of_memory_decision(len(lacking), len(params), where)]
    return {}, []


def _has_trained_later(trained: Sequence[int], out_of_memory: Sequence[int], started: Sequence[float | None]) -> bool:
    """Return whether at least one trial that started after the first failed trial was able to train."""
    failures = [start for i in out_of_memory if (start := started[i]) is not None]
    return any(failures and (start := started[i]) is not None and start > min(failures) for i in trained)


def _out_of_memory_decision(out_of_memory: int, trials: int, where: str) -> Decision:
    text = (
        f"{out_of_memory} of {trials} trials probably ran out of memory: they failed before they logged anything, and only with "
        f"{where}."
    )
    return Decision(topic="status", text=text)
