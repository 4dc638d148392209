"""Tests whether overfitting grows with the learning rate and with the fit to the training data. If it does, a low learning rate
acts as a regulariser."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from scipy import stats

from advisor.computed.curves.overfit import Overfit, measure_overfitting_of_trials
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.parameter_kinds import is_regulariser
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

MIN_TRIALS = 5
"""Minimum number of trials at which both rank correlations (with the learning rate and with the training cost) can be
significant at the 5 % level.
"""
MIN_EVALUATIONS = 6
"""Minimum number of evaluations of a trial to measure its overfitting."""
_MAX_EXACT_TEST_TRIALS = 8
"""Maximum number of trials for an exact p-value; with more trials, Student's t-distribution gives the p-value."""
_FINAL_POINTS_DIVISOR = 10
"""Number by which the length of a training curve is divided. The result is the number of last points whose median is the
curve's final level."""


@dataclass(frozen=True)
class OverfitByLearningRate:
    """The overfitting of n trials, which are ordered by learning rate.

    Trials that have a higher learning rate than the best trial but fit the training data no better are left out, because their
    problem is not overfitting.
    """

    rate: str
    """Name of the searched learning rate."""
    rates: FloatArray
    overfits: tuple[Overfit, ...]
    levels: FloatArray
    """Training cost at the end of each trial, shape (n,)."""
    p_for_learning_rate: float
    """p-value of the hypothesis that overfitting grows with the learning rate only by chance; 1 if overfitting is more closely
    related to a searched regulariser.
    """
    p_for_training_fit: float
    """p-value of the hypothesis that overfitting grows with the fit of the training data only by chance."""

    @property
    def p_value(self) -> float:
        return max(self.p_for_learning_rate, self.p_for_training_fit)


def measure_overfit_by_rate(study: Study, trials: list[Trial], *, material: float) -> OverfitByLearningRate | None:
    """Measure the overfitting of the feasible trials, which are passed best first.

    Return None if there are too few trials or if no learning rate is searched.

    `material` is the minimum rise of a validation curve, as a share of the curve's range.
    """
    searched_rates = searched_learning_rates(study)
    if searched_rates is None:
        return None
    name, rates = searched_rates
    rows = []
    for overfit in measure_overfitting_of_trials(
        study, trials, study.spec.objective.metric, study.cost_curve, material=material
    ):
        training, index = study.train_cost_curve(overfit.trial).finite.values, overfit.trial.index
        if len(training) and np.isfinite(rates[index]):
            end = float(np.median(training[-max(len(training) // _FINAL_POINTS_DIVISOR, 1) :]))
            rows.append((float(rates[index]), index, overfit, end))
    best = next((row for row in rows if row[1] == trials[0].index), None)
    if best is None or len(rows) < MIN_TRIALS or len({row[0] for row in rows}) < 3:
        return None
    rows = sorted((row for row in rows if row[0] <= best[0] or row[3] < best[3]), key=lambda row: row[:2])
    trial_rates = np.array([row[0] for row in rows])
    overfits, levels = tuple(row[2] for row in rows), np.array([row[3] for row in rows])
    rises = np.array([max(r.rise.height, 0.0) if r.p_value < 1 else 0.0 for r in overfits])
    p_rate = rank_correlation_p(trial_rates, rises, "greater")
    for other in (n for n in study.searched if n != name and is_regulariser(n)):
        strengths = study.positions(other, [r.trial for r in overfits])
        if np.isfinite(strengths).all() and rank_correlation_p(strengths, rises, "less") <= p_rate:
            p_rate = 1.0
    return OverfitByLearningRate(name, trial_rates, overfits, levels, p_rate, rank_correlation_p(levels, rises, "less"))


def rank_correlation_p(a: FloatArray, b: FloatArray, alternative: Literal["greater", "less"]) -> float:
    """Return the one-sided p-value of the rank correlation of two arrays (n,)."""
    ranks_a, ranks_b = stats.rankdata(a), stats.rankdata(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return 1.0
    if len(a) > _MAX_EXACT_TEST_TRIALS:
        return float(stats.spearmanr(a, b, alternative=alternative).pvalue)
    sign = 1.0 if alternative == "greater" else -1.0
    orders = np.array(list(permutations(ranks_b)))
    return float(np.mean(sign * (orders @ ranks_a) >= sign * float(ranks_a @ ranks_b) - 1e-9))
