"""Determines why trials are shorter than others: pruned, which rank behind the trials that continued past their last step,
stopped early by patience, or neither, as crashes and time limits end good and bad trials alike."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from advisor.contract import metric_direction
from advisor.model.space import BoolArray, FloatArray, Params, is_training_length
from advisor.model.study import Curve, CurveBlocks
from advisor.tracking.study import axes, from_params, inference
from advisor.tracking.study.objective_costs import ObjectiveCosts

_MAX_SHORT_TRIAL_LENGTH = 0.95
"""Maximum length of a short trial, as a share of the longest one's steps, evaluations and examples."""
_INTERRUPTED_TRIAL_P_VALUES = 0.1, 0.5
"""Maximum p-values (usually; at rungs or right after an evaluation) for pruning of trials that were killed or failed without an
error. The usual one is the share of studies in which crashes are mistaken for pruning."""
_FINISHED_TRIAL_P_VALUES = 0.001, 0.5
"""Maximum p-values (usually; at rungs) for pruning of trials that ended normally. Few such trials were pruned."""
_SEARCHED_LENGTH_P_VALUES = 0.001, 0.05
"""Maximum p-values for trials that ended normally if a hyperparameter sets the length of training."""
_MAX_RUNG_P_VALUE = 0.001
"""Maximum probability that random ends have as few lengths as the rungs at which a tuner such as Hyperband prunes."""
_MAX_STEPS_AFTER_EVALUATION = 0.05
"""Maximum steps after the last evaluation of a pruned trial, as a share of the interval between evaluations."""
_MIN_POINTS_PER_EVALUATION = 5
"""Minimum points of another metric per evaluation to show whether trials end right after an evaluation."""
_MIN_PATIENCE = 2
_MIN_EARLY_STOPPED_TRIALS = 3
"""Minimum number of short trials for detecting early stopping."""
_MIN_EXPLAINED_TRIALS_FRACTION = 0.9
"""Minimum share of the short trials whose end must agree with one patience."""
_COMMON_MIN_DELTAS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
"""Common minimum improvements at which early stopping restarts its count of evaluations."""
_MAX_STOPPING_METRICS = 8


@dataclass(frozen=True, slots=True)
class EarlyStoppingPatience:
    """Early stopping: `stopped_trials` ended `evaluations_without_improvement` evaluations after their best one."""

    stopped_trials: tuple[int, ...]
    evaluations_without_improvement: int
    metric: str


def find_short_trials(costs: ObjectiveCosts, params: Sequence[Params], *, steps_are_epochs: bool = False) -> BoolArray:
    """Return a mask, shape (trials,), of trials that are shorter than the longest one in steps, evaluations and examples.
    Epochs have equally many examples at every batch size, so their number already counts the examples."""
    steps = np.array([c.steps[-1] if len(c) else 0 for c in costs.curves], dtype=np.float64)
    evaluations = np.array([len(c) for c in costs.curves], dtype=np.float64)
    examples = steps * np.array([from_params.batch_size(p) for p in params])
    lengths = [steps, evaluations] + ([examples] if np.isfinite(examples).all() and not steps_are_epochs else [])
    shares = [length / max(float(length.max(initial=0)), 1e-300) for length in lengths]
    has_curve = np.array([len(c) > 0 for c in costs.curves], dtype=np.bool_)
    is_short: BoolArray = has_curve & (np.max(shares, axis=0) < _MAX_SHORT_TRIAL_LENGTH)
    return is_short


def find_pruned_trials(
    blocks: CurveBlocks,
    costs: ObjectiveCosts,
    params: Sequence[Params],
    groups: Sequence[Sequence[int]],
    *,
    finished: Sequence[int],
    length_is_searched: bool,
) -> set[int]:
    """Return the short trials that a tuner pruned. groups: trials that failed without an error, and trials that were killed;
    finished: trials that ended normally; length_is_searched: whether a hyperparameter sets the length of training."""
    trained_on = _logged_after_evaluation(blocks, costs)
    continued_trials = _ContinuedTrials(costs, params)
    pruned_trials: set[int] = set()
    for_finished = _SEARCHED_LENGTH_P_VALUES if length_is_searched else _FINISHED_TRIAL_P_VALUES
    for group, levels in [*((g, _INTERRUPTED_TRIAL_P_VALUES) for g in groups), (finished, for_finished)]:
        candidates = [t for t in group if not trained_on[t]]
        at_rungs = _ends_are_at_rungs(costs, candidates)
        # If another metric was logged often enough, it shows training after the last evaluation.
        max_points = {t: max(len(block.curve(t)) for block in blocks.values()) for t in candidates}
        at_evaluations = all(n >= _MIN_POINTS_PER_EVALUATION * len(costs.curves[t]) for t, n in max_points.items())
        ranks = {t: rank for t in candidates if (rank := continued_trials.last_rank(t, repeats=at_rungs)) is not None}
        if ranks and _p_value_of_ranks(list(ranks.values())) <= levels[at_rungs or (group is not finished and at_evaluations)]:
            rungs = {r.step for r in ranks.values() if r.is_behind_median}
            pruned_trials |= {
                t for t in candidates if at_rungs or (t in ranks and (ranks[t].is_behind_median or ranks[t].step in rungs))
            }
    return pruned_trials


@dataclass(frozen=True, slots=True)
class _LastRank:
    """The rank of a trial at its last evaluation, among the trials that continued past it."""

    step: int
    better_trials: float
    """Number of trials that continued and were better at this step; ties count half."""
    continued_trials: int

    @property
    def is_behind_median(self) -> bool:
        return self.better_trials > self.continued_trials / 2


def _p_value_of_ranks(ranks: Sequence[_LastRank]) -> float:
    """Return the p-value of low ranks by van Elteren's test, which combines Mann-Whitney tests at the end of each trial."""
    excess_rank = variance = 0.0
    for step in {r.step for r in ranks}:
        ranks_at_step = [r for r in ranks if r.step == step]
        n, m = len(ranks_at_step), ranks_at_step[0].continued_trials
        excess_rank += (sum(r.better_trials for r in ranks_at_step) - n * m / 2) / (n + m + 1)
        variance += n * m / 12 / (n + m + 1)
    return float(special.ndtr(-excess_rank / math.sqrt(variance)))


def _ends_are_at_rungs(costs: ObjectiveCosts, trials: Sequence[int]) -> bool:
    """Return whether the trials have few numbers of evaluations, but at least two: a bug can end all at one step."""
    max_evaluations = max(len(c) for c in costs.curves)
    rungs = len({len(costs.curves[t]) for t in trials})
    if rungs < 2 or rungs >= max_evaluations:
        return False
    log_p = math.log(math.comb(max_evaluations, rungs)) + len(trials) * math.log(rungs / max_evaluations)
    return log_p <= math.log(_MAX_RUNG_P_VALUE)


class _ContinuedTrials:
    def __init__(self, costs: ObjectiveCosts, params: Sequence[Params]) -> None:
        self._curves = [c.finite for c in costs.curves]
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for trial, setting in ((i, p) for i, p in enumerate(params) if p):
            groups[inference.exact_key(setting)].append(trial)
        self._repeats = {trial: group for group in groups.values() if len(group) > 1 for trial in group}
        self._others: dict[int, FloatArray] = {}

    def last_rank(self, trial: int, *, repeats: bool) -> _LastRank | None:
        """Return the trial's rank, or None if no trial continued. repeats: whether to count a longer trial if another run of
        its setting ended by this step; right only at rungs, because a person may have trained a good setting longer."""
        curve = self._curves[trial]
        if not len(curve):
            return None
        step = int(curve.steps[-1])
        if step not in self._others:
            self._others[step] = np.array([self._cost_while_running(i, step) for i in range(len(self._curves))])
        costs = self._others[step]
        going_on = np.flatnonzero(np.isfinite(costs)).tolist()
        costs_of_others = costs[[i for i in going_on if repeats or not self._has_shorter_repeat(i, step)]]
        better_count = float((curve.values[-1] > costs_of_others).sum() + (curve.values[-1] == costs_of_others).sum() / 2)
        return _LastRank(step, better_count, len(costs_of_others)) if len(costs_of_others) else None

    def _cost_while_running(self, trial: int, step: int) -> float:
        curve = self._curves[trial]
        at = int(np.searchsorted(curve.steps, step, side="right")) - 1
        if at < 0 or curve.steps[-1] * _MAX_SHORT_TRIAL_LENGTH <= step:
            return math.nan
        return float(curve.values[at])

    def _has_shorter_repeat(self, trial: int, step: int) -> bool:
        repeats = (t for t in self._repeats.get(trial, ()) if t != trial)
        return any(len(c := self._curves[t]) and c.steps[-1] * _MAX_SHORT_TRIAL_LENGTH <= step for t in repeats)


def _logged_after_evaluation(blocks: CurveBlocks, costs: ObjectiveCosts) -> BoolArray:
    """Return a mask, shape (trials,), of trials whose other metrics show training well beyond the last evaluation, except what
    the longest trials log after training."""
    last_steps = axes.last_steps(blocks).astype(np.float64)
    last_evaluations = np.array([c.steps[-1] if len(c) else -1 for c in costs.curves], dtype=np.float64)
    intervals = np.array([_evaluation_interval(c) for c in costs.curves])
    is_long = last_evaluations >= _MAX_SHORT_TRIAL_LENGTH * last_evaluations.max(initial=0)
    usual_distance = float(np.max((last_steps - last_evaluations)[is_long], initial=0.0))
    trained_on: BoolArray = last_steps - last_evaluations > np.maximum(usual_distance, _MAX_STEPS_AFTER_EVALUATION * intervals)
    return trained_on


def length_is_searched(params: Sequence[Params], lengths: Collection[str] = ()) -> bool:
    """Return whether a varying hyperparameter is the length of training, by its name or by `lengths`."""
    names = {n for p in params for n in p if is_training_length(n) or n in lengths}
    return any(len({p.get(name) for p in params}) > 1 for name in names)


def _evaluation_interval(curve: Curve) -> float:
    return float(np.median(np.diff(curve.steps))) if len(curve) > 1 else float(curve.steps[-1]) if len(curve) else 0.0


def find_early_stopped_trials(
    blocks: CurveBlocks, costs: ObjectiveCosts, trials: Sequence[int], is_short: BoolArray
) -> EarlyStoppingPatience | None:
    """Return the trials that ended equally many evaluations after their best one, if nearly all short trials and almost no
    other trial did so. Of several common values of `min_delta`, the one that explains most ends counts."""
    if sum(is_short[t] for t in trials) < _MIN_EARLY_STOPPED_TRIALS:
        return None
    for metric, curves in _stopping_metrics(blocks, costs):
        waits = ([_count_evaluations_without_improvement(c.values, d) for c in curves] for d in _COMMON_MIN_DELTAS)
        patience_fits = filter(None, (_fit_patience(w, trials, is_short) for w in waits))
        best_fit = max(patience_fits, key=lambda f: len(f[1]), default=None)
        if best_fit is not None:
            return EarlyStoppingPatience(best_fit[1], best_fit[0], metric)
    return None


def _fit_patience(
    waits: Sequence[Sequence[int]], trials: Sequence[int], is_short: BoolArray
) -> tuple[int, tuple[int, ...]] | None:
    """Return the patience that ended most of the short trials, with all trials that it ended, if it explains enough of them.
    waits: for each trial, the evaluations without improvement."""
    waits_at_end = [waits[t][-1] if waits[t] else -1 for t in trials if is_short[t]]  # -1: it did not log the metric
    patience, fitting = Counter(waits_at_end).most_common(1)[0]
    within_patience = sum(max(w, default=0) <= patience for w in waits)
    explained_share = min(fitting / len(waits_at_end), within_patience / len(waits))
    if patience < _MIN_PATIENCE or explained_share < _MIN_EXPLAINED_TRIALS_FRACTION:
        return None
    return patience, tuple(t for t in trials if waits[t] and waits[t][-1] == patience)


def _stopping_metrics(blocks: CurveBlocks, costs: ObjectiveCosts) -> list[tuple[str, Sequence[Curve]]]:
    """Return the costs by which early stopping may decide: the objective, then metrics with as many evaluations."""
    points = sum(len(c) for c in costs.curves)
    metrics: list[tuple[str, Sequence[Curve]]] = [(costs.metric, costs.curves)]
    for metric in sorted(blocks):
        direction = metric_direction.direction_of_metric(metric)
        if metric == costs.metric or direction is None or len(blocks[metric].steps) != points:
            continue
        curves = [blocks[metric].curve(i) for i in range(len(costs.curves))]
        metrics.append((metric, curves if direction == "minimize" else [-c for c in curves]))
    return metrics[:_MAX_STOPPING_METRICS]


def _count_evaluations_without_improvement(values: FloatArray, min_delta: float) -> list[int]:
    """Return, for each evaluation, the evaluations since the last improvement by more than `min_delta`."""
    waits, best, wait = [], math.inf, 0
    for value in values.tolist():
        if value < best - min_delta:
            best, wait = value, 0
        else:
            wait += 1
        waits.append(wait)
    return waits
