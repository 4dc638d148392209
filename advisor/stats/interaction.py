"""Tests whether two hyperparameters interact. The null hypothesis is an additive response: a sum of one function per
hyperparameter."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from scipy.optimize import minimize

from advisor.model.space import FloatArray
from advisor.stats.importance import Response, centred_kernel, p_value_of_kernels

SEED = 0
NUMBER_OF_DRAWS = 1999
MAX_NUMBER_OF_DRAWS = 19_999
_KERNEL_RELEVANCES = (1.0, 16.0)
"""Inverse squared length scales of the interaction's kernel: one for a gentle bend over the range, and one for a sharp turn."""
_MIN_RELEVANCE, _MAX_RELEVANCE = 1.0, 60.0


def interaction_p_values(
    response: Response, pairs: list[tuple[int, int]], draws: int = NUMBER_OF_DRAWS
) -> dict[tuple[int, int], float]:
    """Return, for each pair of axes, the p-value: the probability that an additive response with noise shows at least as much
    interaction.

    The additive model has one smooth function per axis. The relevances of the functions are those of `response`, and restricted
    maximum likelihood estimates their variances. The alternative adds a product of smooth functions of both axes; a score test
    is made for each of four pairs of relevances. The smallest of the four p-values is compared with that of data simulated from
    the additive model. The p-values are not corrected for the number of pairs.
    """
    y = response.values - response.values.mean()
    n = len(y)
    relevances = np.clip(np.exp(response.mode[:-2]), _MIN_RELEVANCE, _MAX_RELEVANCE)
    kernels = [centred_kernel(block, bend) for block, bend in zip(response.blocks, relevances, strict=True)]
    variances = _fit_variances(y, kernels)
    covariance = sum((v * k for v, k in zip(variances, kernels, strict=False)), variances[-1] * np.eye(n))
    precision = np.linalg.inv(covariance)
    row_sums = precision.sum(0)
    precision = precision - np.outer(row_sums, row_sums) / row_sums.sum()
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0))
    drawn_statistics = np.random.default_rng(SEED).standard_normal((draws, n)) @ root.T
    rows = np.vstack([precision @ y, drawn_statistics])
    shapes = {
        a: [centred_kernel(response.blocks[a], relevance) for relevance in _KERNEL_RELEVANCES] for pair in pairs for a in pair
    }
    return {(a, b): p_value_of_kernels(rows, (k * m for k, m in product(shapes[a], shapes[b]))) for a, b in pairs}


def draws_needed(level: float) -> int | None:
    """Return a number of draws that suffices for p-values as small as `level`; None if even `MAX_NUMBER_OF_DRAWS` are too few."""
    number = math.ceil(1 / level) - 1
    return None if number > MAX_NUMBER_OF_DRAWS else NUMBER_OF_DRAWS if number <= NUMBER_OF_DRAWS else MAX_NUMBER_OF_DRAWS


def _fit_variances(y: FloatArray, kernels: list[FloatArray]) -> FloatArray:
    """Return the variances of the kernels that maximise the penalised likelihood, followed by the noise variance."""
    n, prior = len(y), np.array([-1.0] * len(kernels) + [-2.0])

    def loss(log_variances: FloatArray) -> tuple[float, FloatArray]:
        v = np.exp(log_variances)
        covariance = sum((x * k for x, k in zip(v, kernels, strict=False)), (v[-1] + 1e-8) * np.eye(n))
        root = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(root)
        precision = inverse.T @ inverse
        weights = precision @ y
        likelihood_slopes = np.outer(weights, weights) - precision
        slopes = [-0.5 * x * np.sum(likelihood_slopes * k) for x, k in zip(v, kernels, strict=False)]
        deviation = (log_variances - prior) / 4
        value = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 2 * deviation @ deviation
        return float(value), np.array([*slopes, -0.5 * v[-1] * np.trace(likelihood_slopes)]) + deviation

    bounds = [(-9.0, 4.0)] * len(kernels) + [(-7.0, 2.0)]
    result = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return np.asarray(np.exp(result.x), dtype=np.float64)
