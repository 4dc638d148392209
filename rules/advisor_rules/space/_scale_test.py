"""On which scale of an axis the response is regular: a test of one scale against another by simulation.

Two models of the same response, Gaussian processes as in `surface`: one smooth along the axis on the scale that was used, the
other on another scale. The difference of their likelihoods is compared with what data drawn from the first model show.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from advisor.model.space import FloatArray
from advisor.stats import surface
from advisor.stats.importance import coordinates, evenly_by_rank, squared_distances

SEED = 0
MOST = 80
"""Values that the models are fitted to at most, evenly over their ranks."""
FEWEST = 8
DRAWS = 399
BETTER = 0.8
"""Share of the values whose differences count; the worst ones are taken for equal, so that a few huge ones do not matter."""
_RELEVANCES = np.exp(np.linspace(-2.5, 8.5, 12))
"""From a bend over several ranges to a turn within a hundredth of one."""
_NOISES = (0.01, 0.05, 0.2, 1.0)
"""Variances of the noise as shares of the response's."""


def room(used: FloatArray, other: FloatArray, values: FloatArray) -> tuple[float, float]:
    """How much of the range the best eighth (at least 4) of the values (n,) span on both scales, positions in 0..1."""
    known = np.flatnonzero(np.isfinite(used) & np.isfinite(other))
    best = known[np.argsort(values[known], kind="stable")[: max(4, len(values) // 8)]]
    return (float(np.ptp(used[best])), float(np.ptp(other[best]))) if len(best) else (1.0, 1.0)


def p_value(used: FloatArray, other: FloatArray, blocks: list[FloatArray], values: FloatArray) -> float:
    """How often a response that is regular on the scale used would seem as regular on the other one; 1 where it does not seem so.

    used, other: positions (n,) on both scales, NaN without one; blocks: coordinates (n, c) of the other axes; values: (n,), finite,
    lower is better. Both models have the relevances of the other axes that fit the model that is to be refuted.
    """
    keep = evenly_by_rank(values, MOST)
    n = len(keep)
    y = _shaped(values[keep][:, None])
    if n < FEWEST or not y.any():
        return 1.0
    rest = [squared_distances(b[keep], b[keep]) for b in blocks]
    axes = [squared_distances(c, c) for c in (coordinates(u[keep], True) for u in (used, other))]
    at = surface.fit(y[:, 0], np.array([*rest, axes[0]]), np.array([*np.zeros(len(rest) + 1), 0.0, -2.0]))
    apart = sum((r * d for r, d in zip(np.exp(at[:-3]), rest, strict=True)), np.zeros((n, n)))
    models = [[_model(apart + r * axis, noise) for r, noise in product(_RELEVANCES, _NOISES)] for axis in axes]
    if max(_fits(m, y)[0] for m in models[1]) <= max(_fits(m, y)[0] for m in models[0]):
        return 1.0
    likeliest = max(models[0], key=lambda m: float(_fits(m, y)[0]))
    drawn = likeliest[0] @ np.random.default_rng(SEED).standard_normal((n, DRAWS))
    rows = np.hstack([y, _shaped(drawn)])
    first, second = (np.max([_fits(m, rows) for m in grid], axis=0) for grid in models)
    gain = second - first
    return float(np.mean(gain >= gain[0] - 1e-9))


def _shaped(columns: FloatArray) -> FloatArray:
    """Columns of values (n, m) with the worst ones taken for equal, each with mean 0 and variance 1; zeros where all are equal."""
    cut = np.minimum(columns, np.quantile(columns, BETTER, axis=0))
    cut = cut - cut.mean(0)
    spread = cut.std(0)
    return np.asarray(cut / np.where(spread > 0, spread, np.inf), dtype=np.float64)


_Model = tuple[FloatArray, FloatArray, float]
"""Root of a covariance but for its size, the root's inverse, and the logarithm of the covariance's determinant."""


def _model(apart: FloatArray, noise: float) -> _Model:
    root = np.asarray(np.linalg.cholesky(np.exp(-0.5 * apart) + (noise + 1e-6) * np.eye(len(apart))), dtype=np.float64)
    return root, np.asarray(np.linalg.inv(root), dtype=np.float64), 2 * float(np.log(np.diag(root)).sum())


def _fits(model: _Model, rows: FloatArray) -> FloatArray:
    """Log-likelihood of each column of rows (n, m), the size of the covariance being the likeliest one."""
    _, inverse, determinant = model
    size = ((inverse @ rows) ** 2).mean(0)
    return np.asarray(-0.5 * len(rows) * np.log(size) - 0.5 * determinant, dtype=np.float64)
