"""Importance of each hyperparameter, alone and through interactions, with uncertainty.

A Gaussian process with one relevance per axis, as in `surface`, is fitted to normal scores of the ranks, so that neither the unit
nor a few huge losses matter. Relevances and noise are drawn from a normal approximation of their posterior, and one response is
drawn for each of them. Importance is a share of the variance between trials, noise included: Sobol's total index over the settings
that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats import surface

SEED = 0
MAX_TRIALS = 128
"""Maximum number of trials to fit the response to, evenly spaced in rank."""
MIN_TRIALS = 8
"""Minimum number of trials; with fewer, the importances only reflect the prior."""
DRAWS = 40
_FEATURES = 100
_EVALUATIONS = 5000
"""Approximate number of points at which responses are compared; exceeded only with many axes."""
_MAX_NUMBERS = 4_000_000
"""Maximum size of an array of points at which responses are computed at once, in numbers."""
_REPETITIONS = 4
_MIN_PLACES = 32
_STEP = 0.1
_MAX_SD = 3.0
"""Maximum standard deviation of the posterior of a relevance's logarithm; equal to that of its prior."""
_BOUNDS = ((-8.0, 6.0), (-4.0, 4.0), (-9.0, 1.5))
_OTHER_CHOICE = 0.125**0.5
_MISSING = 0.4
_JITTER = 1e-6
_PERMUTATIONS = 999
_RELEVANCES = (1.0, 16.0)
_SURE = 0.01
_SHUFFLES = 19
_MAX_SHUFFLED = 64


def normal_scores(costs: FloatArray) -> FloatArray:
    """Return the ranks of costs (n,) as standard normal quantiles; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    scores = stats.norm.ppf((ranks - 0.5) / len(ranks))
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread or 1.0), dtype=np.float64)


def evenly_by_rank(costs: FloatArray, most: int = MAX_TRIALS) -> IntArray:
    """Return indices of at most `most` of the costs (n,), evenly spaced in rank."""
    order = np.argsort(costs, kind="stable")
    return order if len(order) <= most else order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]


@dataclass(frozen=True)
class _Draw:
    """A function drawn from the posterior: random Fourier features of the prior plus a correction at the trials."""

    points: FloatArray
    """Scaled positions of the trials, shape (n, coordinates)."""
    scale: FloatArray
    """Scale factor of each coordinate, shape (coordinates,)."""
    signal: float
    noise: float
    weights: FloatArray
    features: tuple[FloatArray, FloatArray, FloatArray]
    """(frequencies, phases, amplitudes), of shapes (coordinates, features), (features,) and (features,)."""

    def at(self, points: NDArray[np.float32]) -> FloatArray:
        """Return the response at points (m, coordinates). It is computed in single precision for speed, because errors of 0.001
        are negligible here.
        """
        scaled = points * self.scale.astype(np.float32)
        similar = squared_distances(scaled, self.points.astype(np.float32))
        similar *= np.float32(-0.5)
        np.exp(similar, out=similar)
        values = similar @ (self.signal * self.weights).astype(np.float32) + _waves(scaled, self.features)
        return np.asarray(values, dtype=np.float64)


def _waves(scaled: NDArray[Any], features: tuple[FloatArray, FloatArray, FloatArray]) -> NDArray[Any]:
    """Return a function drawn from the prior (Rahimi and Recht) at scaled points, in their precision."""
    frequencies, phases, amplitudes = (f.astype(scaled.dtype) for f in features)
    angles = scaled @ frequencies
    angles += phases
    waves: NDArray[Any] = np.cos(angles, out=angles) @ amplitudes
    return waves


class Response:
    """Draws from the posterior of the response over all hyperparameters."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> None:
        """numeric, choices: positions (n,) of each axis, NaN without one; costs: (n,), NaN for failed trials; n >= 2."""
        self.subset = subset = evenly_by_rank(costs)
        self.values = normal_scores(costs[subset])
        self.blocks = [
            *(coordinates(u[subset], True) for u in numeric),
            *(coordinates(u[subset], False) for u in choices),
        ]
        self.axes = len(self.blocks)
        self.points = np.hstack(self.blocks)
        self.axis_of = np.repeat(np.arange(self.axes), [b.shape[1] for b in self.blocks])
        self._distances = np.array([squared_distances(b, b) for b in self.blocks])
        self.mode = surface.fit(self.values, self._distances)
        self._draws = self._draw_all()

    def p(self, others: Sequence[tuple[FloatArray, bool]] = ()) -> float:
        """Return the probability that shuffled results depend on the axes as much: at least 0.01; above it, a multiple of 1/20.

        Each axis is tested alone first. If no axis is significant, the likelihood of the whole response is compared with up to 19
        shuffles of at most 64 trials, until a shuffle fits as well. others: (positions (n,), True for a number) of each axis that
        the response lacks because its effect is weaker. If there are any, axes are only tested alone, because the test must account
        for the choice among all axes.
        """
        rng = np.random.default_rng(SEED + 2)
        more = [coordinates(u[self.subset], numeric) for u, numeric in others]
        alone = p_of_blocks([*self.blocks, *more], self.values, rng)
        if alone <= _SURE or more:
            return max(alone, _SURE)
        subset = np.sort(evenly_by_rank(self.values, _MAX_SHUFFLED))
        values, distances = self.values[subset], self._distances[:, subset[:, None], subset[None, :]]
        losses = []
        for shuffle in range(_SHUFFLES + 1):
            y = values if shuffle == 0 else rng.permutation(values)
            losses.append(surface.loss_and_slopes(surface.fit(y, distances), y, distances)[0])
            if shuffle and losses[-1] <= losses[0]:
                return 2 / (shuffle + 1)
        return 1 / (_SHUFFLES + 1)

    def p_within(self, axis: int, among: BoolArray) -> float:
        """Return the p-value that the results of the trials `among` (n,) depend on an axis only by chance.

        The effects of the other axes, fitted to all trials, are removed first. 1 with fewer than `MIN_TRIALS` trials.
        """
        mine = among[self.subset]
        if mine.sum() < MIN_TRIALS:
            return 1.0
        left = surface.residuals(self.values, np.delete(self._distances, axis, axis=0), np.delete(self.mode, axis))[
            mine
        ]
        scores = stats.norm.ppf((stats.rankdata(left) - 0.5) / len(left))
        return p_of_blocks([self.blocks[axis][mine]], scores, np.random.default_rng(SEED + 3))

    def _draw_all(self) -> list[_Draw]:
        rng = np.random.default_rng(SEED)
        spread, directions = np.linalg.eigh(self._curvature())
        spread = np.maximum(spread, _MAX_SD**-2)
        low, high = np.array([_BOUNDS[0]] * self.axes + list(_BOUNDS[1:])).T
        steps = rng.standard_normal((DRAWS, len(self.mode))) / np.sqrt(spread)
        return [self._draw(np.clip(self.mode + step @ directions.T, low, high), rng) for step in steps]

    def _curvature(self) -> FloatArray:
        """Return the Hessian of minus the log-likelihood at its mode, by finite differences of the gradient."""
        rows = []
        for k in range(len(self.mode)):
            step = np.zeros(len(self.mode))
            step[k] = _STEP
            up, down = (surface.loss_and_slopes(self.mode + s * step, self.values, self._distances)[1] for s in (1, -1))
            rows.append((up - down) / (2 * _STEP))
        curvature = np.array(rows)
        return np.asarray((curvature + curvature.T) / 2, dtype=np.float64)

    def _draw(self, at: FloatArray, rng: np.random.Generator) -> _Draw:
        """Return a posterior draw of the response for these log relevances, signal and noise, by Matheron's rule."""
        n, p = self.points.shape
        signal, noise = np.exp(at[-2:])
        scale = np.sqrt(np.exp(at[:-2]))[self.axis_of]
        amplitudes = rng.standard_normal(_FEATURES) * np.sqrt(2 * signal / _FEATURES)
        features = rng.standard_normal((p, _FEATURES)), 2 * np.pi * rng.random(_FEATURES), amplitudes
        scaled = self.points * scale
        covariance = signal * np.exp(-0.5 * squared_distances(scaled, scaled)) + (noise + _JITTER) * np.eye(n)
        residual = self.values - _waves(scaled, features) - np.sqrt(noise) * rng.standard_normal(n)
        return _Draw(scaled, scale, float(signal), float(noise), np.linalg.solve(covariance, residual), features)

    def _others(self) -> IntArray:
        """Return, for each axis, point and repetition, the trial whose position is substituted, shape (axes, points, repetitions).

        The substituted trials are evenly spaced in order along the axis, which reduces the sampling error.
        """
        rng, n = np.random.default_rng(SEED + 1), len(self.points)
        trials = []
        for block in self.blocks:
            order = np.lexsort((rng.random(n), *block.T))
            shifts = np.round(n * (np.arange(_REPETITIONS) + 0.5) / _REPETITIONS).astype(np.int64)
            each = rng.permuted(np.tile(shifts, (n, 1)), axis=1)
            trials.append(order[(np.argsort(order)[:, None] + each) % n])
        return np.array(trials)

    def _values_at(self, sets: list[tuple[int, ...]]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return responses at trials' points, responses with each set of axes replaced by those of other trials, and variances.

        Shapes (draws, 1, points, 1), (draws, sets, points, repetitions) and (draws,). The variance is the one between points all of
        whose axes come from different trials, plus noise.
        """
        n = len(self.points)
        count = min(n, max(_EVALUATIONS // (_REPETITIONS * (len(sets) + 1)), _MIN_PLACES))
        base = np.linspace(0, n - 1, count).round().astype(np.int64)
        other = self._others()[:, base]
        same = np.broadcast_to(base[:, None], other.shape[1:])
        p = self.points.shape[1]
        several = max(1, _MAX_NUMBERS // (count * _REPETITIONS * max(p, len(self.points))))
        parts, places = [], [self.points[base]]
        every = [*sets, tuple(range(self.axes))]
        for first in range(0, len(every), several):
            for axes in every[first : first + several]:
                columns = [b[other[a] if a in axes else same] for a, b in enumerate(self.blocks)]
                places.append(np.concatenate(columns, axis=2).reshape(-1, p))
            at = np.vstack(places).astype(np.float32)
            parts.append(np.array([d.at(at) for d in self._draws]))
            places = []
        f = np.concatenate(parts, axis=1)
        unchanged, changed = f[:, None, :count, None], f[:, count:].reshape(len(f), len(sets) + 1, count, _REPETITIONS)
        return unchanged, changed[:, :-1], changed[:, -1].var(axis=(1, 2)) + np.array([d.noise for d in self._draws])

    def total(self) -> FloatArray:
        """Return the importance of each axis with its interactions, shape (draws, axes): a share of the variance between trials."""
        base, swapped, variance = self._values_at([(a,) for a in range(self.axes)])
        return np.asarray(0.5 * ((base - swapped) ** 2).mean((2, 3)) / variance[:, None], dtype=np.float64)

    def pairs(self, axes: Sequence[int]) -> dict[tuple[int, int], FloatArray]:
        """Return the importance of each pair's interaction, shape (draws,): a share of the variance between trials."""
        pairs = list(combinations(sorted(axes), 2))
        base, swapped, variance = self._values_at([*((a,) for a in axes), *pairs])
        alone = dict(zip(axes, np.moveaxis(swapped, 1, 0), strict=False))
        crossed = [base[:, 0] - alone[a] - alone[b] + swapped[:, len(axes) + j] for j, (a, b) in enumerate(pairs)]
        return {pair: np.asarray(0.25 * (c**2).mean((1, 2)) / variance) for pair, c in zip(pairs, crossed, strict=True)}


def p_of_blocks(blocks: Iterable[FloatArray], values: FloatArray, rng: np.random.Generator) -> float:
    """Return the p-value that the values (n,) depend on no block of coordinates (n, c) (HSIC with smooth kernels)."""
    rows = np.vstack([values, rng.permuted(np.tile(values, (_PERMUTATIONS, 1)), axis=1)])
    return p_of_kernels(rows, (kernel(block, relevance) for block, relevance in product(blocks, _RELEVANCES)))


def p_of_kernels(rows: FloatArray, kernels: Iterable[FloatArray]) -> float:
    """Return the p-value that the first row is unrelated to all kernels (n, n), from rows (k, n) of the null distribution.

    The statistic is a row's smallest p-value over the kernels; the first row's is compared with those of the other rows.
    """
    p = np.ones(len(rows))
    for k in kernels:
        strength = ((rows @ k) * rows).sum(1)
        p = np.minimum(p, 1 - np.searchsorted(np.sort(strength), strength - 1e-12) / len(rows))
    return float(np.mean(p <= p[0] + 1e-12))


def kernel(block: FloatArray, relevance: float) -> FloatArray:
    """Return the similarity of points (n, c) along an axis, doubly centred, shape (n, n)."""
    k = np.exp(-0.5 * relevance * squared_distances(block, block))
    return np.asarray(k - k.mean(0) - k.mean(1)[:, None] + k.mean(), dtype=np.float64)


def coordinates(positions: FloatArray, numeric: bool) -> FloatArray:
    """Return coordinates (n, c) of an axis; their squared distances equal those of the positions, or are constant for choices.

    A point without a position is half a range away from all points that have one.
    """
    known = np.isfinite(positions)
    if numeric:
        columns = [np.where(known, np.clip(positions, 0, 1), 0.5)]
    else:
        columns = [np.where(positions == level, _OTHER_CHOICE, 0.0) for level in np.unique(positions[known])]
    if not known.all():
        columns.append(np.where(known, 0.0, _MISSING))
    return np.stack(columns, axis=1)


def squared_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return squared distances between points a (n, p) and b (m, p), shape (n, m), in the inputs' precision."""
    distances: NDArray[Any] = a @ (-2 * b.T)
    distances += (a**2).sum(1)[:, None]
    distances += (b**2).sum(1)
    np.maximum(distances, 0, out=distances)
    return distances
