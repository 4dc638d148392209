"""Whether two hyperparameters interact: a test against a response that is a sum of one function of each."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import minimize

from advisor.model.space import FloatArray
from advisor.stats.importance import Response, squared

SEED = 0
DRAWS = 1999
_SHAPES = (1.0, 16.0)
"""Relevances of the interaction's kernels: one bend over the range, and a sharp turn."""
_LEAST, _MOST = 1.0, 60.0


def p_values(response: Response, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """How often an additive response with this noise would seem to interact as much, for each pair; not adjusted for other pairs.

    The additive model has a smooth function of each axis, as bendy as the response found it, with variances of greatest restricted
    likelihood. The score test of a further variance, for a product of smooth functions of both axes, of four shapes; the least
    likely shape counts, and data drawn from the additive model say how rare that is.
    """
    y = response.values - response.values.mean()
    n = len(y)
    bends = np.clip(np.exp(response.at[:-2]), _LEAST, _MOST)
    kernels = [_kernel(block, bend) for block, bend in zip(response.blocks, bends, strict=True)]
    variances = _variances(y, kernels)
    covariance = sum((v * k for v, k in zip(variances, kernels, strict=False)), variances[-1] * np.eye(n))
    precision = np.linalg.inv(covariance)
    of_mean = precision.sum(0)
    precision = precision - np.outer(of_mean, of_mean) / of_mean.sum()
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0))
    drawn = np.random.default_rng(SEED).standard_normal((DRAWS, n)) @ root.T
    rows = np.vstack([precision @ y, drawn])
    return {pair: _p(rows, response, pair) for pair in pairs}


def _p(rows: FloatArray, response: Response, pair: tuple[int, int]) -> float:
    """Share of the rows, the first being the data's, whose least likely shape is no likelier than that of the first."""
    one, other = ([_kernel(response.blocks[axis], shape) for shape in _SHAPES] for axis in pair)
    rarest = np.ones(len(rows))
    for a, b in product(one, other):
        strength = ((rows @ (a * b)) * rows).sum(1)
        rarest = np.minimum(rarest, 1 - np.searchsorted(np.sort(strength), strength - 1e-12) / len(rows))
    return float(np.mean(rarest <= rarest[0] + 1e-12))


def _kernel(block: FloatArray, relevance: float) -> FloatArray:
    """Similarity of points along an axis, without its constant, shape (n, n)."""
    k = np.exp(-0.5 * relevance * squared(block, block))
    return np.asarray(k - k.mean(0) - k.mean(1)[:, None] + k.mean(), dtype=np.float64)


def _variances(y: FloatArray, kernels: list[FloatArray]) -> FloatArray:
    """Variances of the kernels' functions and of the noise, the last one, of greatest penalised likelihood."""
    n, prior = len(y), np.array([-1.0] * len(kernels) + [-2.0])

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        v = np.exp(at)
        covariance = sum((x * k for x, k in zip(v, kernels, strict=False)), (v[-1] + 1e-8) * np.eye(n))
        root = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(root)
        precision = inverse.T @ inverse
        weights = precision @ y
        pull = np.outer(weights, weights) - precision
        slopes = [-0.5 * x * np.sum(pull * k) for x, k in zip(v, kernels, strict=False)]
        away = (at - prior) / 4
        value = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 2 * away @ away
        return float(value), np.array([*slopes, -0.5 * v[-1] * np.trace(pull)]) + away

    bounds = [(-9.0, 4.0)] * len(kernels) + [(-7.0, 2.0)]
    found = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return np.asarray(np.exp(found.x), dtype=np.float64)
