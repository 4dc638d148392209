"""Tells why trials are shorter than others: a tuner pruned them, they stopped early by patience, or neither.

A pruned trial is behind the trials that went on past its last step. A crash, an interruption or a time limit strikes at any rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.parameter_kinds import is_batch_size
from advisor.model.space import BoolArray, FloatArray, Value, as_number
from advisor.model.study import Curve, CurveBlock
from advisor.tracking.study import axes, metric_names
from advisor.tracking.study.silent_failures import Costs

_SHORT = 0.95
"""Maximum length of a short trial, as a share of the longest, in steps, evaluations and examples."""
_MIN_PASSERS = 2
"""Minimum number of trials that went on, for a trial to be behind them."""
_BEHIND = 0.95
"""Share of pruned trials that end behind the median of those that went on; of trials that ended for other reasons, half do."""
_POSTERIOR = 0.75
"""Minimum probability that a tuner pruned the trials of a group. Our choice."""
_INTERRUPTED = 0.5
"""Prior probability that trials with finite values that failed without an error, or were killed, were pruned."""
_FINISHED = 0.05
"""Prior probability that short trials that ended normally were pruned."""
_LATE = 0.1
"""Maximum distance of a pruned trial's last logged step from its last evaluation, as a share of its evaluation interval: tuners prune
right after an evaluation."""
_MIN_PATIENCE = 2
_MIN_STOPPED = 3
"""Minimum number of short trials that show early stopping."""
_AGREE = 0.9
"""Minimum share of the trials that a patience must explain."""
_MIN_DELTAS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
"""Minimum improvements that trainings commonly demand."""
_MAX_MONITORED = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """The trials that stopped early, each `evaluations` evaluations after its own best one."""

    trials: tuple[int, ...]
    evaluations: int
    metric: str
    """Metric that decided when to stop."""


def short_trials(costs: Costs, params: Sequence[Mapping[str, Value]]) -> BoolArray:
    """Return a mask (trials,) of the trials that are shorter than the longest in steps, evaluations and examples."""
    steps = np.array([c.steps[-1] if len(c) else 0 for c in costs.curves], dtype=np.float64)
    evaluations = np.array([len(c) for c in costs.curves], dtype=np.float64)
    examples = steps * np.array([_batch_size(p) for p in params])
    lengths = [steps, evaluations] + ([examples] if np.isfinite(examples).all() else [])
    shares = [length / max(float(length.max(initial=0)), 1e-300) for length in lengths]
    known = np.array([len(c) > 0 for c in costs.curves], dtype=np.bool_)
    return known & (np.max(shares, axis=0) < _SHORT)


def _batch_size(params: Mapping[str, Value]) -> float:
    return next((as_number(params[name]) for name in sorted(params, key=len) if is_batch_size(name)), math.nan)


# --- pruned by a tuner -----------------------------------------------------------------------------------------------------------


def find_pruned(
    blocks: Mapping[str, CurveBlock],
    costs: Costs,
    params: Sequence[Mapping[str, Value]],
    groups: Sequence[Sequence[int]],
    *,
    finished: Sequence[int],
) -> set[int]:
    """Return the short trials that a tuner pruned.

    groups: trials that failed without an error, or were killed, one group for each way; finished: trials that ended normally.
    """
    late = _logged_after_evaluation(blocks, costs)
    passers = _Passers(costs, params)
    pruned: set[int] = set()
    for group, prior in [*((g, _INTERRUPTED) for g in groups), (finished, _FINISHED)]:
        behind = {t: b for t in group if not late[t] and (b := passers.behind(t)) is not None}
        log_odds = math.log(prior / (1 - prior)) + sum(
            math.log((_BEHIND if b else 1 - _BEHIND) / 0.5) for b in behind.values()
        )
        if behind and log_odds >= math.log(_POSTERIOR / (1 - _POSTERIOR)):
            pruned |= {t for t, b in behind.items() if b}
    return pruned


class _Passers:
    """Compares a trial with those that went on past its last evaluation."""

    def __init__(self, costs: Costs, params: Sequence[Mapping[str, Value]]) -> None:
        self._curves = [c.finite for c in costs.curves]
        self._settings = [tuple(sorted((k, repr(v)) for k, v in p.items())) for p in params]

    def behind(self, trial: int) -> bool | None:
        """Return True if the trial's last cost is worse than the median of those that went on; None if too few did."""
        curve = self._curves[trial]
        if not len(curve):
            return None
        step, others = int(curve.steps[-1]), []
        for other, longer in enumerate(self._curves):
            # A longer repeat of the same setting shows that somebody chose it, not that it went on.
            if not len(longer) or longer.steps[-1] * _SHORT <= step or self._repeats(other, step):
                continue
            at = int(np.searchsorted(longer.steps, step, side="right")) - 1
            if at >= 0:
                others.append(float(longer.values[at]))
        return None if len(others) < _MIN_PASSERS else bool(curve.values[-1] > np.median(others))

    def _repeats(self, trial: int, step: int) -> bool:
        if not self._settings[trial]:
            return False
        twins = [t for t, s in enumerate(self._settings) if t != trial and s == self._settings[trial]]
        return any(len(c := self._curves[t]) and c.steps[-1] * _SHORT <= step for t in twins)


def _logged_after_evaluation(blocks: Mapping[str, CurveBlock], costs: Costs) -> BoolArray:
    """Return a mask (trials,) of the trials that logged other metrics well after their last evaluation: they trained on.

    Metrics that the longest trials log after training do not count.
    """
    last = axes.last_steps(blocks).astype(np.float64)
    ends = np.array([c.steps[-1] if len(c) else -1 for c in costs.curves], dtype=np.float64)
    intervals = np.array([_interval(c) for c in costs.curves])
    longest = ends >= _SHORT * ends.max(initial=0)
    usual = float(np.max((last - ends)[longest], initial=0.0))
    late: BoolArray = last - ends > np.maximum(usual, _LATE * intervals)
    return late


def _interval(curve: Curve) -> float:
    return float(np.median(np.diff(curve.steps))) if len(curve) > 1 else float(curve.steps[-1]) if len(curve) else 0.0


# --- stopped early by patience ---------------------------------------------------------------------------------------------------


def find_early_stopped(blocks: Mapping[str, CurveBlock], costs: Costs, short: Sequence[int]) -> Patience | None:
    """Return the short trials that stopped a constant number of evaluations after their own best one; None if no such number fits.

    The number must fit nearly all short trials, and nearly no trial of the study may train on for longer without an improvement.
    """
    if len(short) < _MIN_STOPPED:
        return None
    for metric, curves in _monitored(blocks, costs):
        for min_delta in _MIN_DELTAS:
            waits = [_waits(c.values, min_delta) for c in curves]
            counts = Counter(waits[t][-1] for t in short if len(waits[t]))
            if not counts:
                continue
            patience, fitting = counts.most_common(1)[0]
            patient = np.mean([max(w, default=0) <= patience for w in waits])
            if patience >= _MIN_PATIENCE and fitting >= _AGREE * len(short) and patient >= _AGREE:
                stopped = tuple(t for t in short if len(waits[t]) and waits[t][-1] == patience)
                return Patience(stopped, patience, metric)
    return None


def _monitored(blocks: Mapping[str, CurveBlock], costs: Costs) -> list[tuple[str, Sequence[Curve]]]:
    """Return the metrics that may decide when to stop, as costs: the objective, then those evaluated as often as it."""
    points = sum(len(c) for c in costs.curves)
    found: list[tuple[str, Sequence[Curve]]] = [(costs.metric, costs.curves)]
    for metric in sorted(blocks):
        direction = metric_names.direction_of(metric)
        if metric == costs.metric or direction is None or len(blocks[metric].steps) != points:
            continue
        curves = [blocks[metric].curve(i) for i in range(len(costs.curves))]
        found.append((metric, curves if direction == "minimize" else [-c for c in curves]))
    return found[:_MAX_MONITORED]


def _waits(values: FloatArray, min_delta: float) -> list[int]:
    """Return, for each evaluation, the number of evaluations since the last improvement by more than `min_delta`."""
    waits, best, wait = [], math.inf, 0
    for value in values.tolist():
        if value < best - min_delta:
            best, wait = value, 0
        else:
            wait += 1
        waits.append(wait)
    return waits
