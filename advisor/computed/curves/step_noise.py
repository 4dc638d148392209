"""The luck of the step: how much of the order of trials is evaluation-to-evaluation noise around their best steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.computed.curves.curve_tails import rate_at_end
from advisor.model.change import Advise, SetSchedule
from advisor.model.space import FloatArray
from advisor.model.study import Signal, Study, Trial
from advisor.stats.curve import HUGE, noise, smoothed

FEWEST = 10
"""Evaluations below which the noise around the best one is anybody's guess."""
_DRAWS = 500
_FEWEST_AROUND = 8
_COURSE = 9
_ALONG = 0.05
_TRAINING: tuple[Signal, ...] = ("train_objective", "train_eval_loss")


@dataclass(frozen=True, slots=True)
class Around:
    """The half of a curve around its best point, taken apart into a smooth course and noise."""

    start: int
    """Index of its first point."""
    course: FloatArray
    """The smooth course, local parabolas; shape (m,)."""
    rest: FloatArray
    """The points less the course, shape (m,)."""
    noise: float
    """Standard deviation of the noise from one evaluation to the next."""

    def chance_above(self, level: float) -> float:
        """How sure it is that the true noise exceeds `level`, the estimate's logarithm being off by 1.5 / sqrt(m)."""
        if self.noise <= 0 or level <= 0 or math.isinf(level):
            return float(self.noise > level)
        return float(stats.norm.cdf(math.log(self.noise / level) * math.sqrt(len(self.course)) / 1.5))


def around_best(costs: FloatArray) -> Around | None:
    """The half of a curve of costs (n,), finite, around its lowest point; None for fewer than 10 points."""
    n = len(costs)
    if n < FEWEST:
        return None
    y = np.clip(costs, -HUGE, HUGE)
    size = min(n, max(n // 2, _FEWEST_AROUND))
    start = min(max(int(np.argmin(y)) - size // 2, 0), n - size)
    part = y[start : start + size]
    # Single jumps are taken out before the fit; they would bend it.
    calm = median_filter(part, size=3, mode="nearest")
    course = smoothed(calm, min(_COURSE, size - 1 + size % 2))
    scatter = _noise(part)
    # Without noise the curve is its own course, and nothing about it is luck.
    return Around(start, course if scatter > 0 else part, part - course if scatter > 0 else np.zeros(size), scatter)


def _noise(part: FloatArray) -> float:
    """As `curve.noise`, or less where the curve's own bends pass for noise; 0 where no point lies above the one before.

    White noise of variance sigma^2 makes third differences of variance 20 sigma^2 and successive second differences of covariance
    -4 sigma^2, whereas those of a bend have the same sign.
    """
    if (np.diff(part) <= 0).all():
        return 0.0
    second = part[:-2] - 2 * part[1:-1] + part[2:]
    third = float(np.median(np.abs(np.diff(second)))) / 0.6745 / math.sqrt(20)
    alternating = max(0.0, -float(np.mean(second[1:] * second[:-1])) / 4)
    return min(noise(part), third, math.sqrt(alternating))


@dataclass(frozen=True, slots=True)
class Luck:
    """What would become of a ranking if every trial's evaluations were drawn again."""

    keeps: float
    """Share of the draws in which the best trial stays the best."""
    reliability: float
    """Share of the variance of the trials' best costs that is not due to noise, 0..1."""
    noise: float
    """Median over the trials of the standard deviation from one evaluation to the next."""
    spread: float
    """Standard deviation of one trial's best cost over the draws, root mean square over the trials."""


def ranking_luck(trials: Sequence[Around], *, seed: int = 0) -> Luck:
    """Draws the evaluations of two or more trials again, 500 times, from their courses and noise; the first trial is the best."""
    rng = np.random.default_rng(seed)
    best = np.stack(
        [(t.course + t.noise * rng.standard_normal((_DRAWS, len(t.course)))).min(axis=1) for t in trials], axis=1
    )
    reported = np.array([float((t.course + t.rest).min()) for t in trials])
    by_luck = float(np.mean(best.var(axis=0)))
    total = float(reported.var(ddof=1))
    return Luck(
        keeps=float(np.mean(best.argmin(axis=1) == 0)),
        reliability=max(0.0, 1 - by_luck / total) if total > 0 else 0.0 if by_luck > 0 else 1.0,
        noise=float(np.median([t.noise for t in trials])),
        spread=math.sqrt(by_luck),
    )


def move_together(one: FloatArray, other: FloatArray) -> float:
    """One-sided p-value that two curves (n,) at the same steps jump up and down together; NaN where that cannot be told."""
    if len(one) < FEWEST:
        return math.nan
    a, b = np.diff(one, 2), np.diff(other, 2)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(stats.spearmanr(a, b, alternative="greater").pvalue)


def training_jumps(study: Study, trial: Trial) -> float:
    """p-value that training, evaluated at the same steps, jumps along with the objective; NaN without such a metric."""
    objective = study.cost_curve(trial).finite
    for signal in _TRAINING:
        training = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            training = -training
        _, mine, theirs = np.intersect1d(objective.steps, training.steps, return_indices=True)
        late = slice(len(mine) // 2, None)
        p = move_together(objective.values[mine[late]], training.values[theirs[late]])
        if not math.isnan(p):
            return p
    return math.nan


def remedy(study: Study, trials: Sequence[Trial], *, constant: float) -> tuple[Advise | SetSchedule, str]:
    """What to do about it and why: a constant learning rate first, then whether training jumps along.

    constant: share of its peak above which a learning rate that ends there has not decayed.
    """
    if any(rate_at_end(study, t) > constant for t in trials):
        why = "The learning rate does not decay, and validation jumps between evaluations late in training."
        return SetSchedule(schedule={"kind": "cosine"}, why=why), "learning rate not decayed"
    together = [p for t in trials if not math.isnan(p := training_jumps(study, t))]
    if together and np.median(together) <= _ALONG:
        text = "Average the weights of the last steps (Polyak averaging) and evaluate the average, or raise the batch size."
        return Advise(text=text), "training jumps along with validation, so the model itself does"
    if together:
        return Advise(
            text="Evaluate on more validation data."
        ), "training does not jump along: the validation set is small"
    text = "Average the weights of the last steps, decay the learning rate, raise the batch size or use more validation data."
    return Advise(text=text), "cannot be told: log the learning rate, and the objective on training data"
