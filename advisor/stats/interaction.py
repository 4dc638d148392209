"""A test if two hyperparameters interact, against an additive response (a sum of one function per hyperparameter)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from scipy.optimize import minimize

from advisor.model.space import FloatArray
from advisor.stats.importance import Response, kernel, p_of_kernels

SEED = 0
DRAWS = 1999
MAX_DRAWS = 19_999
_SHAPES = (1.0, 16.0)
"""Relevances of the interaction's kernel: a single bend over the range, and a sharp turn."""
_MIN_RELEVANCE, _MAX_RELEVANCE = 1.0, 60.0


def p_values(response: Response, pairs: list[tuple[int, int]], draws: int = DRAWS) -> dict[tuple[int, int], float]:
    """Return for each pair the p-value: the probability that an additive response with this noise shows as much interaction.

    The additive model has one smooth function per axis, with the relevances of `response` and restricted maximum likelihood
    variances. A score test adds one variance, for a product of smooth functions of both axes, in four shapes. The smallest of the
    four p-values is compared with data simulated from the additive model. It is not adjusted for other pairs.
    """
    y = response.values - response.values.mean()
    n = len(y)
    bends = np.clip(np.exp(response.mode[:-2]), _MIN_RELEVANCE, _MAX_RELEVANCE)
    kernels = [kernel(block, bend) for block, bend in zip(response.blocks, bends, strict=True)]
    variances = _variances(y, kernels)
    covariance = sum((v * k for v, k in zip(variances, kernels, strict=False)), variances[-1] * np.eye(n))
    precision = np.linalg.inv(covariance)
    of_mean = precision.sum(0)
    precision = precision - np.outer(of_mean, of_mean) / of_mean.sum()
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0))
    drawn = np.random.default_rng(SEED).standard_normal((draws, n)) @ root.T
    rows = np.vstack([precision @ y, drawn])
    shapes = {a: [kernel(response.blocks[a], relevance) for relevance in _SHAPES] for pair in pairs for a in pair}
    return {(a, b): p_of_kernels(rows, (k * m for k, m in product(shapes[a], shapes[b]))) for a, b in pairs}


def draws_for(level: float) -> int | None:
    """Return the number of draws from which p-values as small as `level` follow; None if it exceeds `MAX_DRAWS`."""
    needed = math.ceil(1 / level) - 1
    return None if needed > MAX_DRAWS else DRAWS if needed <= DRAWS else MAX_DRAWS


def _variances(y: FloatArray, kernels: list[FloatArray]) -> FloatArray:
    """Return the variances of the kernels' functions, then of the noise, that maximise the penalised likelihood."""
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
    result = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return np.asarray(np.exp(result.x), dtype=np.float64)
