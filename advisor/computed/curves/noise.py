"""Estimates noise: random differences between equally good settings, and between the evaluations around a trial's best step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.computed.decision import repeats
from advisor.model.space import MAX_FINITE_VALUE, BoolArray, FloatArray
from advisor.model.study import Study, Trial
from advisor.stats import curve
from advisor.stats.heterogeneity import measure_heterogeneity

_MIN_DEGREES_OF_FREEDOM = 3
_NUMBER_OF_BEST_TRIALS = 3
"""Number of best trials in which noise between evaluations is measured."""
DIFFERENCE_BOUND_IN_SDS = 2 * math.sqrt(2)
"""Upper 95 % bound of the difference between two equally good results, in standard deviations of one result."""

MIN_EVALUATIONS_FOR_NOISE = 10
"""Minimum number of evaluations to measure the noise around the best one."""
_SEED = 0
_NUMBER_OF_REDRAWS = 500
_MIN_POINTS_AROUND_BEST = 8
_MIN_POINTS_AT_END = 3
_MAX_PARABOLA_WINDOW = 9
"""Maximum number of points of a local parabola."""


def noise_between_seeds(study: Study) -> tuple[float, bool]:
    """Return (standard deviation between seeds, True if it has at least 3 degrees of freedom); (0, False) without repeats."""
    sd_and_freedom = repeats.variance_between_seeds(repeats.full_length_settings(study))
    return (sd_and_freedom[0], sd_and_freedom[1] >= _MIN_DEGREES_OF_FREEDOM) if sd_and_freedom is not None else (0.0, False)


def seed_noise_explains_differences(study: Study, trials: Sequence[Trial], level: float) -> bool:
    """Return True if repeats of one setting differ as much as the results of the trials (studentized range test). If so, more
    seeds can rank the trials, but more precise evaluations cannot."""
    deviation, measured = noise_between_seeds(study)
    costs = study.costs[[t.index for t in trials]]
    return measured and len(costs) > 1 and measure_heterogeneity(costs, np.full(len(costs), deviation), level).p_value > level


def noise_between_evaluations(study: Study) -> float:
    """Return the standard deviation of a trial's best result due to noise between evaluations; 0 for too few evaluations.

    Return the maximum over the best three trials, without trials that are clearly worse than the best one, because noise is
    often larger in worse trials."""
    trials = study.ranked()[:_NUMBER_OF_BEST_TRIALS]
    costs_and_sds = [(float(study.costs[t.index]), sd) for t in trials if math.isfinite(sd := _noise_of_best_result(study, t))]
    if not costs_and_sds:
        return 0.0
    max_equal_cost = costs_and_sds[0][0] + DIFFERENCE_BOUND_IN_SDS * costs_and_sds[0][1]
    return max(sd for cost, sd in costs_and_sds if cost <= max_equal_cost)


def is_worse_beyond_noise(study: Study) -> BoolArray:
    """Return the mask, (n,), of the trials that are worse than the best one by a relevant difference and more than noise
    between seeds or, if unknown, between evaluations. The mask is False for trials whose noise is unknown."""
    mask, ranked = np.zeros(len(study.trials), dtype=np.bool_), study.ranked()
    if not ranked:
        return mask
    between_seeds, is_measured = noise_between_seeds(study)
    best, *others = ranked
    best_cost = float(study.costs[best.index])
    own = between_seeds if is_measured else _noise_of_best_result(study, best)
    for trial in others:
        noise = between_seeds if is_measured else _noise_of_best_result(study, trial)
        min_difference = max(2 * math.hypot(own, noise), repeats.min_relevant_difference(study.objective_value(best_cost)))
        mask[trial.index] = study.costs[trial.index] - best_cost > min_difference
    return mask


def _noise_of_best_result(study: Study, trial: Trial) -> float:
    half_around_best = split_around_best(study.cost_curve(trial).finite.values)
    return math.nan if half_around_best is None else redraw_ranking([half_around_best, half_around_best]).best_cost_sd


@dataclass(frozen=True, slots=True)
class HalfAroundBest:
    """The m evaluations around the best point of a curve (half of the curve), split into a smooth curve and noise."""

    first_index: int
    """Index, in the whole curve, of the first point of this half."""
    smooth_curve: FloatArray
    """Smooth curve of local parabolas through the points, shape (m,)."""
    residuals: FloatArray
    noise_sd: float
    """Standard deviation of the noise of one evaluation."""

    def chance_noise_exceeds(self, level: float) -> float:
        """Return the probability that `noise_sd` exceeds `level`; its logarithm has a standard error of 1.5 / sqrt(m)."""
        if self.noise_sd <= 0 or level <= 0 or math.isinf(level):
            return float(self.noise_sd > level)
        return float(stats.norm.cdf(math.log(self.noise_sd / level) * math.sqrt(len(self.smooth_curve)) / 1.5))


def split_around_best(costs: FloatArray) -> HalfAroundBest | None:
    """Split the half around the lowest point of a finite cost curve, (n,), into a smooth curve and noise; None if n < 10."""
    n = len(costs)
    if n < MIN_EVALUATIONS_FOR_NOISE:
        return None
    y = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    half_size = min(n, max(n // 2, _MIN_POINTS_AROUND_BEST))
    first_index = min(max(int(np.argmin(y)) - half_size // 2, 0), n - half_size)
    costs_around_best = y[first_index : first_index + half_size]
    # Single jumps would bend the fitted parabolas, so remove them first.
    without_jumps = median_filter(costs_around_best, size=3, mode="nearest")
    smooth_curve = curve.smooth_savgol(without_jumps, min(_MAX_PARABOLA_WINDOW, half_size - 1 + half_size % 2))
    noise_sd = _noise_sd(costs_around_best)
    if not noise_sd > 0:
        smooth_curve = costs_around_best
    return HalfAroundBest(first_index, smooth_curve, costs_around_best - smooth_curve, noise_sd)


def split_ends(curves: Sequence[FloatArray], lengths: Sequence[int]) -> list[HalfAroundBest] | None:
    """Split the ends of cost curves into straight lines and noise of a common variance. lengths: number of points of each end.
    Return None if a length is below 3, or if a curve is better before its end by more than noise."""
    if min(lengths) < _MIN_POINTS_AT_END:
        return None
    curve_ends = [np.clip(c[-m:], -MAX_FINITE_VALUE, MAX_FINITE_VALUE) for c, m in zip(curves, lengths, strict=True)]
    fitted_lines = [np.asarray(np.polyval(np.polyfit(x := np.arange(len(y)), y, 1), x), dtype=np.float64) for y in curve_ends]
    residuals = [y - line for y, line in zip(curve_ends, fitted_lines, strict=True)]
    noise_sd = math.sqrt(np.mean([float(r @ r) / (len(r) - 2) for r in residuals]))
    for costs, end in zip(curves, curve_ends, strict=True):
        half_around_best = split_around_best(costs)
        if half_around_best is None or end.min() > costs.min() + 2 * math.sqrt(2) * half_around_best.noise_sd:
            return None
    return [HalfAroundBest(len(c) - len(r), y, r, noise_sd) for c, y, r in zip(curves, fitted_lines, residuals, strict=True)]


def _noise_sd(part: FloatArray) -> float:
    """Return the standard deviation of the noise; 0 if the curve never rises. Bends of a curve inflate `curve.noise_sd`, which is
    therefore only an upper bound.

    White noise with variance sigma^2 has third differences of variance 20 sigma^2, and successive second differences of
    covariance -4 sigma^2; in a bend, successive second differences have the same sign.
    """
    if (np.diff(part) <= 0).all():
        return 0.0
    second_differences = part[:-2] - 2 * part[1:-1] + part[2:]
    sd_from_third_differences = float(np.median(np.abs(np.diff(second_differences)))) / 0.6745 / math.sqrt(20)
    variance_from_covariance = max(0.0, -float(np.mean(second_differences[1:] * second_differences[:-1])) / 4)
    return min(curve.noise_sd(part), sd_from_third_differences, math.sqrt(variance_from_covariance))


@dataclass(frozen=True, slots=True)
class RankingStability:
    """Stability of a ranking of trials when the noise of their evaluations is drawn again."""

    best_unchanged_share: float
    """Share of the draws in which the best trial remains the best."""
    reliability: float
    """Share of the variance between the trials' best costs that is not due to noise."""
    noise_sd: float
    """Standard deviation of the noise of one evaluation; median over the trials."""
    best_cost_sd: float
    """Standard deviation of one trial's best cost over the draws; root mean square over the trials."""
    losses: FloatArray
    """Difference between each trial and the best one in each draw, shape (draws, trials)."""
    range_bound: float
    """Upper 95 % bound of the difference between the best and the worst trial."""


def redraw_ranking(trials: Sequence[HalfAroundBest]) -> RankingStability:
    """Draw the evaluations of two or more trials, as smooth curve plus noise, and find the best trial of each draw."""
    rng = np.random.default_rng(_SEED)
    draws = [t.smooth_curve + t.noise_sd * rng.standard_normal((_NUMBER_OF_REDRAWS, len(t.smooth_curve))) for t in trials]
    drawn_best_costs = np.stack([d.min(axis=1) for d in draws], axis=1)
    best_costs = np.array([float((t.smooth_curve + t.residuals).min()) for t in trials])
    noise_variance = float(np.mean(drawn_best_costs.var(axis=0)))
    total_variance = float(best_costs.var(ddof=1))
    return RankingStability(
        # Smoothing may lower another trial below the first one, but the first trial is still at least as likely to be the best
        # as any other.
        best_unchanged_share=max(float(np.mean(drawn_best_costs.argmin(axis=1) == 0)), 1 / len(trials)),
        reliability=max(0.0, 1 - noise_variance / total_variance) if total_variance > 0 else 0.0 if noise_variance > 0 else 1.0,
        noise_sd=float(np.median([t.noise_sd for t in trials])),
        best_cost_sd=math.sqrt(noise_variance),
        losses=drawn_best_costs - drawn_best_costs.min(axis=1, keepdims=True),
        range_bound=float(np.quantile(np.ptp(drawn_best_costs, axis=1), 0.95)),
    )
