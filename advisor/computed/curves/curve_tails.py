"""Examines the last part of the curves of the best trials, to find trials that still improve or stopped improving early.

Only steps at a constant learning rate are examined: a decay bends the end of a curve, whether or not longer training helps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.curves import noise
from advisor.computed.curves.good_trials import good_trials
from advisor.computed.steps import schedules
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, words_of_name
from advisor.model.study import Curve, Study, Trial
from advisor.stats import slowing, trend

TAIL_SHARE = 0.2
"""Length of the last part of a curve, as a share of the steps of the training."""
SETTLING_TOLERANCE = 0.005
"""Maximum distance of a settled objective from its final level, as a share of its improvement."""
TRAIN_SETTLING_TOLERANCE = 0.02
"""Maximum distance of a settled training cost from its final level, as a share of its improvement."""
SUFFICIENT_LENGTH_FACTOR = 1.25
"""Recommended length of a training, as a multiple of the steps until its curve settles."""
MIN_WORTHWHILE_GAIN = 0.01
"""Minimum forecast gain of longer training, as a share of the improvement so far. Our choice."""
NUMBER_OF_BEST_TRIALS = 3
"""Number of best trials to examine; the Deep Learning Tuning Playbook asks for at least the best few."""
MAX_DISTANCE_FROM_BEST = 0.1
"""Maximum distance of an examined trial from the best result, as a share of the best trial's improvement."""
DECAYED_LEARNING_RATE_RATIO = 0.1
"""Maximum final value of a decayed learning rate, as a share of its peak. A decay alone can make the last step the best one."""
MIN_UNDECAYED_STEP_SHARE = 0.55
"""Minimum share of steps at a constant learning rate for a curve to show whether longer training helps. Our choice: a cosine
schedule is nearly constant for 20 % of the steps, a linear decay for 10 %, a warmup-stable-decay schedule for 60 to 90 %."""
MAX_PLATEAU_START_SHARE = 0.05
"""Maximum share of the steps before curves that lie on one early plateau settle. Our choice."""

_SIGNIFICANCE_LEVEL = 0.05
_SHARE_METRIC_WORDS = frozenset("acc accuracy top1 top5 f1 auc auroc precision recall iou miou map dice em percent".split())
"""Words in names of metrics that are shares, from 0 to 1 or from 0 to 100."""
_HALF_LENGTH_ADVICE = "train the two best settings with the same schedule at half the length, and compare the results"


@dataclass(frozen=True, slots=True)
class CurveEnding:
    """The last part of a trial's curves: its validation cost (the objective, so that lower is better) and its training cost."""

    trial: Trial
    steps: int
    """Last step at which the objective was evaluated."""
    last_constant_rate_step: int
    """Last step at a constant learning rate; the last evaluated step if the learning rate never decays. Except for `steps`, all
    fields describe the curves up to this step."""
    is_rate_assumed: bool
    """True if the learning rate is only assumed to be constant."""
    margin: float
    """Sufficient length of training, as a multiple of the steps until the curves settle."""
    end: trend.CurveEnd
    plateau: trend.Plateau
    train_end: trend.CurveEnd | None
    train_plateau: trend.Plateau | None
    train_distance_left: float
    """Final distance of the training cost from a perfect fit, as a share of the initial distance; NaN if unknown."""

    @property
    def settled_share(self) -> float:
        """Share of the steps at a constant learning rate after which the curves have settled."""
        return max(self.plateau.settled_share, self.train_plateau.settled_share if self.train_plateau else 0.0)

    def has_saturated(self, *, rest: float, saved: float, material: float, alpha: float, floor: float = 0.0) -> bool:
        """Return True if the trial clearly stopped improving long before its end, so that a shorter training suffices.

        A training of `margin` times the settling time must save at least the share `saved` of the steps at a constant learning
        rate. In the saved steps, the objective may change by at most `rest`, and the training cost by at most 2 * `rest`. The
        objective must not improve at the end. The training cost is ignored if `train_distance_left` is at most `floor`.
        """
        is_fit_perfect = self.train_distance_left <= floor
        is_training_cost_flat = is_fit_perfect or self.train_plateau is None or self.train_plateau.is_flat(2 * rest)
        settled_share = self.plateau.settled_share if is_fit_perfect else self.settled_share
        saves_enough_steps = self.margin * settled_share <= 1 - saved
        still_improves = self.end.is_improving(material, alpha)
        return saves_enough_steps and is_training_cost_flat and self.plateau.is_flat(rest) and not still_improves


def best_curve_endings(
    study: Study,
    best: int,
    reach: float,
    *,
    tolerance: float = SETTLING_TOLERANCE,
    margin: float = SUFFICIENT_LENGTH_FACTOR,
    tail: float = TAIL_SHARE,
) -> list[CurveEnding]:
    """Return the curve endings of up to `best` good trials that ran to their planned end, best trial first. Raises MissingData
    if there are none, or if learning rates decay, because a decay hides the effect of more steps."""
    complete_trials = _complete_trials(study, best, reach)
    constant_rate_trials = [t for t in complete_trials if not 0 <= _undecayed_step_share(study, t) < MIN_UNDECAYED_STEP_SHARE]
    if not constant_rate_trials:
        raise MissingData(
            "the learning rate decays in the best trials, which bends the end of their curves, so they do not show if more or "
            "fewer steps would be better; " + _HALF_LENGTH_ADVICE,
            needs="design",
        )
    endings = [e for t in constant_rate_trials if (e := _curve_ending(study, t, tolerance, margin, tail)) is not None]
    if 2 * sum(e.is_rate_assumed and _learning_rate_may_decay(study, e) for e in endings) > len(endings) > 1:
        raise MissingData(
            "the learning rate of the best trials is unknown, and the course of their loss does not show that it is constant, so "
            "their curves do not show if more or fewer steps would be better; log the learning rate, or " + _HALF_LENGTH_ADVICE,
            needs="learning_rate",
        )
    if not endings:
        lack = (
            f"fewer than {trend.MIN_POINTS} evaluations of {study.spec.objective.metric}, or did not improve beyond their noise"
        )
        raise MissingData(f"the best trials have {lack}; evaluate more often", needs="evaluations", at_least=trend.MIN_POINTS)
    return endings


def _complete_trials(study: Study, best: int, reach: float) -> list[Trial]:
    complete_trials = [t for t in good_trials(study, reach) if not study.cut_short(t)][:best]
    if not complete_trials:
        raise MissingData("every good trial was cut short; train some trials for all of max_train_steps", needs="full_length")
    if all(len(study.cost_curve(t).finite) < 2 for t in complete_trials):
        reason = f"each of the best trials has a single value of {study.spec.objective.metric}, which is no curve"
        raise MissingData(f"{reason}; evaluate more often", needs="evaluations", at_least=trend.MIN_POINTS)
    return complete_trials


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a trial's best objective value if it trains twice as long, in the objective's unit and bounds."""

    current_best: float
    low: float
    point_forecast: float
    high: float
    """Bounds of the 90 % interval; `low` is the smaller value, even if smaller is better."""


def forecast_longer_training(study: Study, ending: CurveEnding, extension: float = 1.0, level: float = 0.9) -> Forecast:
    """Forecast the result of longer training. extension: share of the gain from doubling the length to include, 0 to 1."""
    full_curve = study.cost_curve(ending.trial).finite
    curve, best_cost = _truncate_curve(full_curve, ending.last_constant_rate_step), float(full_curve.values.min())
    lowest_cost = lowest_possible_cost(study, full_curve.values)
    low_gain, high_gain = ending.end.forecast_interval(level)
    offset = best_cost - float(curve.values.min())
    low, point, high = (
        study.objective_value(max(offset + trend.cost_after_gain(curve.steps, curve.values, gain * extension), lowest_cost))
        for gain in (low_gain, ending.end.forecast_gain, high_gain)
    )
    return Forecast(study.objective_value(best_cost), min(low, high), point, max(low, high))


def difference_to_second_best(study: Study) -> float:
    """Return the difference between the best two results, in the objective's unit; NaN for fewer than two."""
    best_two = study.ranked()[:2]
    return abs(float(study.costs[best_two[1].index] - study.costs[best_two[0].index])) if len(best_two) > 1 else math.nan


def late_gain_bound(study: Study, endings: Sequence[CurveEnding]) -> float:
    """Return the upper 95 % bound of the gain after the curves settled, in the objective's unit."""
    return max(0.0, *(_share_to_objective_units(study, e, e.plateau.late_gain_bound) for e in endings))


def max_noise_difference(study: Study, endings: Sequence[CurveEnding]) -> float:
    """Return the upper 95 % bound of the difference between two equally good trials, in the objective's unit, from the largest
    of the noise between seeds, between evaluations, and the scatter of the curves."""
    sds = [noise.noise_between_seeds(study)[0], noise.noise_between_evaluations(study)]
    return noise.DIFFERENCE_BOUND_IN_SDS * max(*sds, *(_share_to_objective_units(study, e, e.end.scatter) for e in endings))


def are_on_one_plateau(study: Study, endings: Sequence[CurveEnding]) -> bool:
    """Return True if trials of different settings settle early in training at the same value, as stuck trials do. Values count
    as the same if they differ by no more than noise, or by no more than the trials may have gained after they settled."""
    settings = {tuple(str(e.trial.params.get(n)) for n in study.searched) for e in endings}
    starts = [e.settled_share * e.last_constant_rate_step / e.steps for e in endings]
    if len(settings) < 2 or max(starts) > MAX_PLATEAU_START_SHARE:
        return False
    cost_range = float(np.ptp(study.costs[[e.trial.index for e in endings]]))
    return cost_range <= max(max_noise_difference(study, endings), late_gain_bound(study, endings))


def _share_to_objective_units(study: Study, ending: CurveEnding, share: float) -> float:
    curve = _truncate_curve(study.cost_curve(ending.trial).finite, ending.last_constant_rate_step)
    return float(curve.values.min()) - trend.cost_after_gain(curve.steps, curve.values, share)


def lowest_possible_cost(study: Study, costs: FloatArray) -> float:
    """Return the lowest possible cost: 0 for losses that were never negative, -1 or -100 for maximised shares, else -inf."""
    if study.minimize:
        return 0.0 if costs.min() >= 0 else -math.inf
    if costs.max() <= 0 and costs.min() >= -1:
        return -1.0
    share_words = _SHARE_METRIC_WORDS & set(words_of_name(study.spec.objective.metric))
    return -100.0 if share_words and costs.max() <= 0 and costs.min() >= -100 else -math.inf


def endings_still_improving(judged: Sequence[CurveEnding], material: float, alpha: float) -> list[CurveEnding]:
    """Return the endings of `judged` that still improve; empty if at most half of them do."""
    improving_endings = [e for e in judged if e.end.is_improving(material, alpha)]
    return improving_endings if 2 * len(improving_endings) > len(judged) else []


def needs_longer_training(study: Study, alpha: float) -> bool:
    """Return True if most of the best trials still improve at their end."""
    try:
        endings = best_curve_endings(study, NUMBER_OF_BEST_TRIALS, MAX_DISTANCE_FROM_BEST)
    except MissingData:
        return False
    return bool(endings_still_improving(endings, MIN_WORTHWHILE_GAIN, alpha))


def median_planned_steps(study: Study, endings: Sequence[CurveEnding]) -> int:
    return max(round(float(np.median([study.planned_length(e.trial, e.steps) for e in endings]))), 1)


def _learning_rate_may_decay(study: Study, ending: CurveEnding) -> bool:
    """Return True if an unlogged learning rate may decay. The rate counts as constant if the pooled curves of the study agree
    with a constant rate. If the curve still improves, the pooled curves must also show that longer training helps."""
    falls = _pool_fall_rates(study)
    improves = ending.end.is_improving(MIN_WORTHWHILE_GAIN, _SIGNIFICANCE_LEVEL)
    if falls is None:
        return improves
    return falls.contradicts_constant_rate or (improves and not falls.longer_training_helps(MIN_WORTHWHILE_GAIN))


@computed
def _pool_fall_rates(study: Study) -> slowing.FallRates | None:
    trials = [t for t in study.ranked() if not study.cut_short(t) and math.isnan(_undecayed_step_share(study, t))]
    curves = [c.finite for t in trials for c in (study.cost_curve(t), study.train_cost_curve(t))]
    return slowing.pool_fall_rates([(c.steps, c.values) for c in curves])


def curve_end_before_decay(study: Study, trial: Trial) -> trend.CurveEnd | None:
    """Return the end of the objective's curve at a constant learning rate; None if too few steps have a constant rate."""
    if 0 <= _undecayed_step_share(study, trial) < MIN_UNDECAYED_STEP_SHARE:
        return None
    ending = _curve_ending(study, trial, SETTLING_TOLERANCE, SUFFICIENT_LENGTH_FACTOR, TAIL_SHARE)
    return None if ending is None or (ending.is_rate_assumed and _learning_rate_may_decay(study, ending)) else ending.end


def _undecayed_step_share(study: Study, trial: Trial) -> float:
    """Return the share of the steps before the learning rate decays; NaN if the schedule is unknown."""
    steps = study.cost_curve(trial).finite.steps
    last_step = int(steps[-1]) if len(steps) else 0
    return schedules.read_schedule(study, trial).last_peak_step(last_step) / max(last_step, 1)


@computed
def _curve_ending(study: Study, trial: Trial, tolerance: float, margin: float, tail: float) -> CurveEnding | None:
    full_curve = study.cost_curve(trial).finite
    if not len(full_curve):
        return None
    last_constant_rate_step = schedules.read_schedule(study, trial).last_peak_step(int(full_curve.steps[-1]))
    curve, train = (_truncate_curve(c, last_constant_rate_step) for c in (full_curve, study.train_cost_curve(trial).finite))
    if not len(curve):
        return None
    end = trend.read_curve_end(curve.steps, curve.values, tail=tail)
    curve_plateau = trend.read_plateau(curve.steps, curve.values, tolerance=tolerance, margin=margin)
    if end is None or curve_plateau is None:
        return None
    return CurveEnding(
        trial=trial,
        steps=int(full_curve.steps[-1]),
        last_constant_rate_step=int(curve.steps[-1]),
        is_rate_assumed=math.isnan(last_constant_rate_step),
        margin=margin,
        end=end,
        plateau=curve_plateau,
        train_end=trend.read_curve_end(train.steps, train.values, tail=tail),
        train_plateau=trend.read_plateau(train.steps, train.values, tolerance=TRAIN_SETTLING_TOLERANCE, margin=margin),
        train_distance_left=trend.distance_from_perfect_score(train.values),
    )


def _truncate_curve(curve: Curve, last_step: float) -> Curve:
    """Return the part of the curve up to `last_step`; the whole curve if `last_step` is NaN."""
    if math.isnan(last_step) or not len(curve) or last_step >= curve.steps[-1]:
        return curve
    n = int(np.searchsorted(curve.steps, last_step, side="right"))
    return Curve(curve.steps[:n], curve.values[:n], curve.times[:n])
