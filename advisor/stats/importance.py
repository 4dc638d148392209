"""How much each hyperparameter matters, alone and with others, with an uncertainty: draws of the response over all of them.

A Gaussian process with a relevance for each axis, as in `surface`, of ranks turned into normal scores, so that neither the unit
nor a few huge losses matter. The relevances and the noise are drawn from a normal approximation of their posterior, a response from
each. Importance is a share of the variance between trials, noise included (Sobol's total index): what an axis brings by itself and
through interactions, among the settings that were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.model.space import FloatArray, IntArray
from advisor.stats import surface

SEED = 0
MOST = 128
"""Trials that the response is fitted to at most, evenly over their ranks."""
FEWEST = 8
"""Trials below which importance is what the model took for likely beforehand."""
DRAWS = 40
_FEATURES = 100
_EVALUATIONS = 5000
"""Points at which responses are compared, about; more only where there are many axes."""
_REPETITIONS = 4
_FEWEST_POINTS = 32
_STEP = 0.1
_WIDEST = 3.0
"""Largest standard deviation of a relevance's logarithm, that of its prior."""
_BOUNDS = ((-8.0, 6.0), (-4.0, 4.0), (-9.0, 1.5))
_OTHER_CHOICE = 0.125**0.5
_MISSING = 0.4
_JITTER = 1e-6
_PERMUTATIONS = 999
_BENDS = (1.0, 16.0)
_SURELY = 0.01
_SHUFFLES = 19
_MOST_SHUFFLED = 64


def normal_scores(costs: FloatArray) -> FloatArray:
    """Ranks of costs (n,) as quantiles of a normal distribution with mean 0 and variance 1; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    scores = stats.norm.ppf((ranks - 0.5) / len(ranks))
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread or 1.0), dtype=np.float64)


def evenly(costs: FloatArray, most: int = MOST) -> IntArray:
    """Indices of at most this many of the costs (n,), evenly over their ranks; all of them if they are no more."""
    order = np.argsort(costs, kind="stable")
    return order if len(order) <= most else order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]


@dataclass(frozen=True)
class _Draw:
    """One response: a function drawn from the posterior, as the prior's random Fourier features plus what the trials correct."""

    points: FloatArray
    """The trials, scaled, shape (n, coordinates)."""
    scale: FloatArray
    """Shape (coordinates,): what each coordinate is multiplied by."""
    signal: float
    noise: float
    weights: FloatArray
    features: tuple[FloatArray, FloatArray, FloatArray]
    """Frequencies (coordinates, features), phases and amplitudes (features,)."""

    def at(self, points: NDArray[np.float32]) -> FloatArray:
        """The response at points (m, coordinates); in single precision, of which it takes a thousandth, for speed."""
        scaled = points * self.scale.astype(np.float32)
        similar = squared(scaled, self.points.astype(np.float32))
        similar *= np.float32(-0.5)
        np.exp(similar, out=similar)
        found = similar @ (self.signal * self.weights).astype(np.float32) + _waves(scaled, self.features)
        return np.asarray(found, dtype=np.float64)


def _waves(scaled: NDArray[Any], features: tuple[FloatArray, FloatArray, FloatArray]) -> NDArray[Any]:
    """A function drawn from the prior (Rahimi and Recht), at scaled points, in their precision."""
    frequencies, phases, amplitudes = (f.astype(scaled.dtype) for f in features)
    angles = scaled @ frequencies
    angles += phases
    waves: NDArray[Any] = np.cos(angles, out=angles) @ amplitudes
    return waves


class Response:
    """Draws from the posterior of the response over all hyperparameters."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> None:
        """numeric, choices: positions (n,) of each axis, NaN without one; costs: (n,), NaN where a trial failed; n >= 2."""
        keep = evenly(costs)
        self.values = normal_scores(costs[keep])
        self.blocks = [*(coordinates(u[keep], True) for u in numeric), *(coordinates(u[keep], False) for u in choices)]
        self.axes = len(self.blocks)
        self.points = np.hstack(self.blocks)
        self.axis_of = np.repeat(np.arange(self.axes), [b.shape[1] for b in self.blocks])
        self._distances = np.array([squared(b, b) for b in self.blocks])
        self.at = surface.fit(self.values, self._distances, np.array([*np.zeros(self.axes), 0.0, -2.0]))
        self._draws = self._draw_all()

    def p(self) -> float:
        """How often shuffled results would go with the axes as much: 0.01 for at most that often, else in twentieths.

        First by each axis alone; where that leaves it open, by the likelihood of the whole response, fitted anew to up to 19
        shuffles of at most 64 trials, but no further once one does as well.
        """
        rng = np.random.default_rng(SEED + 2)
        if _alone(self.blocks, self.values, rng) <= _SURELY:
            return _SURELY
        some = np.sort(evenly(self.values, _MOST_SHUFFLED))
        values, distances = self.values[some], self._distances[:, some[:, None], some[None, :]]
        start = np.array([*np.zeros(self.axes), 0.0, -2.0])
        losses = []
        for shuffle in range(_SHUFFLES + 1):
            y = values if shuffle == 0 else rng.permutation(values)
            losses.append(surface.loss_and_slopes(surface.fit(y, distances, start), y, distances)[0])
            if shuffle and losses[-1] <= losses[0]:
                return 2 / (shuffle + 1)
        return 1 / (_SHUFFLES + 1)

    def _draw_all(self) -> list[_Draw]:
        rng = np.random.default_rng(SEED)
        spread, directions = np.linalg.eigh(self._curvature())
        spread = np.maximum(spread, _WIDEST**-2)
        low, high = np.array([_BOUNDS[0]] * self.axes + list(_BOUNDS[1:])).T
        steps = rng.standard_normal((DRAWS, len(self.at))) / np.sqrt(spread)
        return [self._draw(np.clip(self.at + step @ directions.T, low, high), rng) for step in steps]

    def _curvature(self) -> FloatArray:
        """Second derivatives of minus the log-likelihood at its best, from its slopes on both sides."""
        rows = []
        for k in range(len(self.at)):
            step = np.zeros(len(self.at))
            step[k] = _STEP
            up, down = (surface.loss_and_slopes(self.at + s * step, self.values, self._distances)[1] for s in (1, -1))
            rows.append((up - down) / (2 * _STEP))
        curvature = np.array(rows)
        return np.asarray((curvature + curvature.T) / 2, dtype=np.float64)

    def _draw(self, at: FloatArray, rng: np.random.Generator) -> _Draw:
        """A response for these logarithms of relevances, signal and noise, by Matheron's rule."""
        n, p = self.points.shape
        signal, noise = np.exp(at[-2:])
        scale = np.sqrt(np.exp(at[:-2]))[self.axis_of]
        amplitudes = rng.standard_normal(_FEATURES) * np.sqrt(2 * signal / _FEATURES)
        features = rng.standard_normal((p, _FEATURES)), 2 * np.pi * rng.random(_FEATURES), amplitudes
        scaled = self.points * scale
        covariance = signal * np.exp(-0.5 * squared(scaled, scaled)) + (noise + _JITTER) * np.eye(n)
        rest = self.values - _waves(scaled, features) - np.sqrt(noise) * rng.standard_normal(n)
        return _Draw(scaled, scale, float(signal), float(noise), np.linalg.solve(covariance, rest), features)

    def _others(self) -> IntArray:
        """For each axis, point and repetition the trial whose position is taken instead, shape (axes, points, repetitions).

        Each point is compared with trials that lie evenly along the axis, by order: what is left to chance is small.
        """
        rng, n = np.random.default_rng(SEED + 1), len(self.points)
        chosen = []
        for block in self.blocks:
            order = np.lexsort((rng.random(n), *block.T))
            shifts = np.round(n * (np.arange(_REPETITIONS) + 0.5) / _REPETITIONS).astype(np.int64)
            each = rng.permuted(np.tile(shifts, (n, 1)), axis=1)
            chosen.append(order[(np.argsort(order)[:, None] + each) % n])
        return np.array(chosen)

    def _values_at(self, sets: list[tuple[int, ...]]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Responses at trials' points as they are and with each set of axes taken from other trials, and each draw's variance.

        Shapes (draws, 1, points, 1), (draws, sets, points, repetitions) and (draws,); the variance is that between points all axes
        of which are taken from different trials, noise included.
        """
        n = len(self.points)
        count = min(n, max(_EVALUATIONS // (_REPETITIONS * (len(sets) + 1)), _FEWEST_POINTS))
        base = np.linspace(0, n - 1, count).round().astype(np.int64)
        other = self._others()[:, base]
        taken = np.broadcast_to(base[:, None], other.shape[1:])
        swapped = [
            np.concatenate([b[other[a] if a in axes else taken] for a, b in enumerate(self.blocks)], axis=2)
            for axes in [*sets, tuple(range(self.axes))]
        ]
        p = self.points.shape[1]
        places = np.vstack([self.points[base], *(s.reshape(-1, p) for s in swapped)]).astype(np.float32)
        f = np.array([d.at(places) for d in self._draws])
        as_they_are, rest = f[:, None, :count, None], f[:, count:].reshape(len(f), len(sets) + 1, count, _REPETITIONS)
        return as_they_are, rest[:, :-1], rest[:, -1].var(axis=(1, 2)) + np.array([d.noise for d in self._draws])

    def total(self) -> FloatArray:
        """Importance of each axis with its interactions, (draws, axes): a share of the variance between trials."""
        base, swapped, variance = self._values_at([(a,) for a in range(self.axes)])
        return np.asarray(0.5 * ((base - swapped) ** 2).mean((2, 3)) / variance[:, None], dtype=np.float64)

    def pairs(self, axes: Sequence[int]) -> dict[tuple[int, int], FloatArray]:
        """Importance of the interaction of each pair of these axes, (draws,): a share of the variance between trials."""
        found = list(combinations(sorted(axes), 2))
        base, swapped, variance = self._values_at([*((a,) for a in axes), *found])
        alone = dict(zip(axes, np.moveaxis(swapped, 1, 0), strict=False))
        crossed = [base[:, 0] - alone[a] - alone[b] + swapped[:, len(axes) + j] for j, (a, b) in enumerate(found)]
        return {pair: np.asarray(0.25 * (c**2).mean((1, 2)) / variance) for pair, c in zip(found, crossed, strict=True)}


def _alone(blocks: list[FloatArray], values: FloatArray, rng: np.random.Generator) -> float:
    """P-value that values go with no axis: dependence on each by smooth kernels (HSIC), the least likely counts."""
    rows = np.vstack([values, rng.permuted(np.tile(values, (_PERMUTATIONS, 1)), axis=1)])
    rarest = np.ones(len(rows))
    for block, bend in product(blocks, _BENDS):
        k = np.exp(-0.5 * bend * squared(block, block))
        k = k - k.mean(0) - k.mean(1)[:, None] + k.mean()
        strength = ((rows @ k) * rows).sum(1)
        rarest = np.minimum(rarest, 1 - np.searchsorted(np.sort(strength), strength - 1e-12) / len(rows))
    return float(np.mean(rarest <= rarest[0] + 1e-12))


def coordinates(positions: FloatArray, numeric: bool) -> FloatArray:
    """Coordinates (n, c) of an axis whose squared distances are those of positions, or the same for any two choices.

    A point without a position lies half a range from all that have one.
    """
    known = np.isfinite(positions)
    if numeric:
        columns = [np.where(known, np.clip(positions, 0, 1), 0.5)]
    else:
        columns = [np.where(positions == level, _OTHER_CHOICE, 0.0) for level in np.unique(positions[known])]
    if not known.all():
        columns.append(np.where(known, 0.0, _MISSING))
    return np.stack(columns, axis=1)


def squared(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Squared distances of points a (n, p) and b (m, p), shape (n, m), in their precision."""
    apart: NDArray[Any] = a @ (-2 * b.T)
    apart += (a**2).sum(1)[:, None]
    apart += (b**2).sum(1)
    np.maximum(apart, 0, out=apart)
    return apart
