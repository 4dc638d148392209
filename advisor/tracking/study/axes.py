"""Puts the curves of a trial on one axis, where some were logged by optimizer step and others by epoch.

A loop that logs its losses at every step and its validation at `step=epoch` is common, and frameworks do it, too. Numbers alone
do not tell epoch 3 from step 3; the clock does: what was logged at step 3 of a metric that counts steps was logged early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from advisor.model.space import FloatArray, IntArray, Value, as_number, counts_training
from advisor.model.study import Curve, CurveBlock

_FEWEST = 3
"""Points that a curve must have for its clock to be read."""
_FASTER = 1.5
"""How many times as many steps as its own numbers say must have been made when a metric that counts epochs was logged."""
_LISTED = 5


def align(blocks: Mapping[str, CurveBlock]) -> tuple[dict[str, CurveBlock], list[str]]:
    """The metrics with epochs replaced by the steps at which they ended, trial by trial, and a warning that says so."""
    last = {name: int(block.steps.max()) for name, block in blocks.items() if len(block.steps)}
    if not last:
        return dict(blocks), []
    reference = max(last, key=lambda name: (last[name], len(blocks[name].steps), name))
    candidates = [name for name in last if _is_counted(blocks[name]) and 2 * (last[name] + 1) <= last[reference]]
    if not candidates:
        return dict(blocks), []
    steps = {name: blocks[name].steps.copy() for name in candidates}
    first = _first_step(blocks[reference])
    moved: set[str] = set()
    lengths: list[float] = []
    for trial in range(len(blocks[reference].offsets) - 1):
        clock = blocks[reference].curve(trial)
        by_epoch = {
            name: pace
            for name in candidates
            if (pace := _steps_per_epoch(blocks[name].curve(trial), clock, first)) is not None
        }
        if not by_epoch:
            continue
        length = float(np.median(list(by_epoch.values())))
        lengths.append(length)
        moved |= by_epoch.keys()
        for name in by_epoch:
            part = slice(int(blocks[name].offsets[trial]), int(blocks[name].offsets[trial + 1]))
            steps[name][part] = _ends(blocks[name].steps[part], length, first)
    aligned = {name: _moved(block, steps[name]) if name in moved else block for name, block in blocks.items()}
    return aligned, list(_warning(sorted(moved), reference, lengths))


def _is_counted(block: CurveBlock) -> bool:
    """Whether every trial's steps count up one by one from 0 or 1."""
    if not len(block.steps):
        return False
    firsts = block.offsets[:-1][np.diff(block.offsets) > 0]
    inner = np.ones(len(block.steps), dtype=np.bool_)
    inner[firsts] = False
    ones = np.diff(block.steps, prepend=block.steps[:1])[inner] == 1
    return bool(ones.all() and (block.steps[firsts] <= 1).all())


def _first_step(block: CurveBlock) -> int:
    """The number of a training's first step: 1 where every fifth is logged as 5, 10, 15; 0 where as 0, 5, 10 or 4, 9, 14."""
    curve = next((c for i in range(len(block.offsets) - 1) if len(c := block.curve(i)) > 1), None)
    if curve is None or curve.steps[0] == 0:
        return 0
    return int(curve.steps[0] % (curve.steps[1] - curve.steps[0]) == 0)


def _steps_per_epoch(curve: Curve, clock: Curve, first: int) -> float | None:
    """How many of the clock's steps an epoch of the curve has; None where the curve may as well count steps."""
    if len(curve) < _FEWEST or len(clock) < _FEWEST or not _runs_on(clock.times) or not _runs_on(curve.times):
        return None
    made = _made(curve.times, clock) + 1 - first
    epochs = (curve.steps - curve.steps[0] + 1).astype(np.float64)
    if not (np.median(made / epochs) >= _FASTER and made[-1] >= _FASTER * epochs[-1]):
        return None
    length = float(epochs @ made / (epochs @ epochs))
    interval = float(np.median(np.diff(clock.steps)))
    total = float(clock.steps[-1]) + (interval if clock.steps[0] == 0 else 1 - first)
    whole = total / epochs[-1]  # where the training ended with an epoch, that is the exact length
    return whole if abs(total - length * epochs[-1]) <= max(interval, 0.03 * total) else length


def _runs_on(times: FloatArray) -> bool:
    return bool(np.isfinite(times).all() and times[-1] > times[0] and (np.diff(times) >= 0).all())


def _made(times: FloatArray, clock: Curve) -> FloatArray:
    """The clock's steps at `times`, at most one of its intervals beyond its last."""
    pace = (clock.steps[-1] - clock.steps[0]) / (clock.times[-1] - clock.times[0])
    interval = float(np.median(np.diff(clock.steps)))
    beyond = np.clip((times - clock.times[-1]) * pace, 0.0, interval)
    made: FloatArray = np.interp(times, clock.times, clock.steps.astype(np.float64)) + beyond
    return made


def _ends(steps: IntArray, length: float, first: int) -> IntArray:
    ends: IntArray = np.rint((steps - steps[0] + 1) * length).astype(np.int64) - 1 + first
    return ends


def _moved(block: CurveBlock, steps: IntArray) -> CurveBlock:
    return CurveBlock(steps, block.values, block.times, block.offsets)


def _warning(moved: Sequence[str], reference: str, lengths: Sequence[float]) -> Iterator[str]:
    if not moved:
        return
    listed = ", ".join(moved[:_LISTED]) + (f" and {len(moved) - _LISTED} more" if len(moved) > _LISTED else "")
    low, high = min(lengths), max(lengths)
    length = f"{low:.4g}" if high - low < 0.05 * high else f"{low:.4g} to {high:.4g}"
    yield (
        f"Logged by epoch, and put where the epochs ended among the steps of {reference}, about {length} steps an epoch as "
        f"their times tell: {listed}."
    )


def last_steps(blocks: Mapping[str, CurveBlock]) -> IntArray:
    """The last step that each trial logged of any metric, shape (trials,); -1 where it logged none."""
    last = np.full(len(next(iter(blocks.values())).offsets) - 1, -1, dtype=np.int64)
    for block in blocks.values():
        some = np.diff(block.offsets) > 0
        last[some] = np.maximum(last[some], block.steps[block.offsets[1:][some] - 1])
    return last


BY_EPOCH = "Metrics were logged by epoch: every step in this report is an epoch."


def epochs_only(ends: IntArray, params: Sequence[Mapping[str, Value]]) -> list[str]:
    """A warning where every metric was logged by epoch: each trial's last step is the number of epochs in its parameters."""
    planned = np.array([next((as_number(v) for n, v in p.items() if _counts_epochs(n)), -9.0) for p in params])
    if (ends >= 1).any() and np.isin((planned - ends)[ends >= 1], (0, 1)).all():
        return [BY_EPOCH]
    return []


def _counts_epochs(name: str) -> bool:
    return counts_training(name) and "epoch" in name.lower()
