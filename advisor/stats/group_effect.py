"""The difference between groups of settings after all other hyperparameters are optimised away, with its uncertainty.

A Gaussian process is fitted to the costs of all groups together: a response that the groups share, a constant for each group, and a
deviation of each group's own, so that the groups may have their optima at different places. The best value of a group is the
minimum of its response near the good settings. Source of the model: Swersky, Snoek and Adams, "Multi-task Bayesian optimization".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats.importance import coordinates, evenly_by_rank, squared_distances

SEED = 0
MIN_EACH = 4
"""Minimum number of settings with a result in each group that is compared."""
_RESPONSES = 20
"""Number of draws of the relevances and variances from their posterior."""
_DRAWS = 40
"""Number of responses to draw for each draw of the relevances and variances."""
_MAX_POINTS = 128
"""Number of settings to fit the response to; more only if small groups need them for `MIN_EACH`."""
_MAX_PLACES = 240
"""Maximum product of the numbers of places and groups at which responses are drawn."""
_GOOD = 4
"""Minimum number of good settings of each group; the search for its best value covers the lines between them."""
_CONSTANT = 4.0
"""Prior variance of a group's constant, in variances of the costs."""
_JITTER = 1e-4
# Logarithms of the relevances, the shared variance, the groups' own variance and the noise: prior means and variances, bounds.
_PRIOR_MEANS = (0.0, 0.0, -1.0, -4.0)
_PRIOR_VARIANCES = (4.0, 2.25, 2.0, 4.0)
_BOUNDS = ((-7.0, 5.0), (-3.0, 5.0), (-12.0, 3.0), (-11.0, 1.0))


@dataclass(frozen=True)
class GroupEffect:
    """Best values of groups of settings, as draws from their posterior distribution."""

    best: FloatArray
    """Best cost of each group, shape (draws, groups)."""
    noise: float
    """Standard deviation of the results around the fitted response, near the best settings."""

    @property
    def leader(self) -> int:
        """Index of the group with the lowest expected best cost."""
        return int(self.best.mean(0).argmin())

    def behind(self, group: int, level: float) -> tuple[float, float, float]:
        """Return the group's best cost minus the leader's, as (estimate, low, high) with an interval of this level."""
        gaps = self.best[:, group] - self.best[:, self.leader]
        low, middle, high = np.quantile(gaps, [(1 - level) / 2, 0.5, (1 + level) / 2])
        return float(middle), float(low), float(high)


def compare(groups: IntArray, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> GroupEffect:
    """Compare groups of settings.

    groups: (n,) indices 0, 1, ...; numeric, choices: positions (n,) of the other hyperparameters, NaN without one; costs: (n,),
    finite. Bad costs are compressed on an asinh scale, because a response with a cliff is not smooth on the original one.
    """
    subset = _subset(groups, costs)
    groups, costs = groups[subset], costs[subset]
    blocks = [*(coordinates(u[subset], True) for u in numeric), *(coordinates(u[subset], False) for u in choices)]
    zero, unit = float(costs.min()), max(float(np.median(costs) - costs.min()), 1e-12)
    y = np.arcsinh((costs - zero) / unit)
    centre, spread = float(y.mean()), float(y.std()) or 1.0
    # The noise of a cost shrinks on the asinh scale by the derivative of asinh.
    model = _Model(blocks, groups, (y - centre) / spread, 1 / (1 + ((costs - zero) / unit) ** 2))
    drawn = model.best_values(_places(blocks, groups, costs))
    best = zero + unit * np.sinh(np.clip(centre + spread * drawn, -20, 20))
    return GroupEffect(best, float(np.exp(model.mode[-1] / 2)) * spread * unit)


def _subset(groups: IntArray, costs: FloatArray) -> IntArray:
    """Return sorted indices of the settings to fit, evenly spaced in rank within each group.

    A group keeps at least `MIN_EACH` settings, or all if it has fewer.
    """
    share, kept = min(1.0, _MAX_POINTS / len(costs)), []
    for g in range(int(groups.max()) + 1):
        own = np.flatnonzero(groups == g)
        kept.append(own[evenly_by_rank(costs[own], max(MIN_EACH, round(share * len(own))))])
    return np.sort(np.concatenate(kept))


def _places(blocks: list[FloatArray], groups: IntArray, costs: FloatArray) -> FloatArray:
    """Return places (m, coordinates) at which to seek the best value: good settings, and points on lines through two of them."""
    rng = np.random.default_rng(SEED)
    points = np.hstack(blocks) if blocks else np.zeros((len(costs), 1))
    count = int(groups.max()) + 1
    good = []
    for g in range(count):
        mine = np.flatnonzero(groups == g)
        good.append(mine[np.argsort(costs[mine], kind="stable")][: max(_GOOD, len(mine) // 3)])
    own = points[np.concatenate(good)]
    more = max(_MAX_PLACES // count - len(own), 20)
    pairs = [rng.choice(good[k % count], 2) for k in range(more)]
    share = rng.uniform(-0.5, 1.5, (more, 1))
    between = np.array([share[k] * points[a] + (1 - share[k]) * points[b] for k, (a, b) in enumerate(pairs)])
    return np.vstack([own[: _MAX_PLACES // count], between])


class _Model:
    """The fitted Gaussian process. `mode` holds the logarithms of the relevances, the shared and own variance, and the noise."""

    def __init__(self, blocks: list[FloatArray], groups: IntArray, y: FloatArray, scatter: FloatArray) -> None:
        """scatter: (n,), relative noise variance of each point."""
        self.scatter = scatter
        self.points = np.hstack(blocks) if blocks else np.zeros((len(y), 1))
        self.axis_of = np.repeat(np.arange(len(blocks)), [b.shape[1] for b in blocks]) if blocks else np.array([0])
        self.groups, self.y = groups, y
        self.same: BoolArray = groups[:, None] == groups[None, :]
        self.distances = (
            np.array([squared_distances(b, b) for b in blocks]) if blocks else np.zeros((1, len(y), len(y)))
        )
        axes = len(self.distances)
        repeat = np.array([axes, 1, 1, 1])
        self.means, self.variances = np.repeat(_PRIOR_MEANS, repeat), np.repeat(_PRIOR_VARIANCES, repeat)
        self.bounds = np.repeat(np.array(_BOUNDS), repeat, axis=0)
        self.mode = self._fit()

    def _loss(self, at: FloatArray) -> tuple[float, FloatArray]:
        """Return minus the logarithm of the penalised likelihood, and its gradient."""
        relevance, (shared, own, noise) = np.exp(at[:-3]), np.exp(at[-3:])
        similar, slope = _matern(np.tensordot(relevance, self.distances, 1))
        parts = shared * similar, own * similar * self.same
        covariance = parts[0] + parts[1] + _CONSTANT * self.same + np.diag(noise * self.scatter + _JITTER)
        root = np.linalg.cholesky(covariance)
        precision = np.linalg.inv(covariance)
        weights = precision @ self.y
        pull = np.outer(weights, weights) - precision
        both = pull * slope * (shared + own * self.same)
        slopes = [-0.5 * r * np.sum(d * both) for r, d in zip(relevance, self.distances, strict=True)]
        slopes += [-0.5 * np.sum(pull * part) for part in parts] + [-0.5 * noise * (pull.diagonal() @ self.scatter)]
        away = at - self.means
        loss = 0.5 * self.y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum(away**2 / self.variances)
        return float(loss), np.array(slopes) + away / self.variances

    def _fit(self) -> FloatArray:
        """Return the mode, the better of two local optima: from a poor start, the fit takes the response for noise."""
        found = []
        for noise in (-5.0, -1.0):
            start = np.array([*np.zeros(len(self.distances)), 0.0, -4.0, noise])
            result = minimize(
                self._loss, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options={"maxiter": 80}
            )
            found.append((float(result.fun), result.x))
        return np.asarray(min(found, key=lambda f: f[0])[1], dtype=np.float64)

    def _curvature(self, step: float = 0.1) -> FloatArray:
        rows = [
            (self._loss(self.mode + step * e)[1] - self._loss(self.mode - step * e)[1]) / (2 * step)
            for e in np.eye(len(self.mode))
        ]
        return (np.array(rows) + np.array(rows).T) / 2

    def best_values(self, places: FloatArray) -> FloatArray:
        """Return draws of each group's minimum over these places, shape (draws, groups)."""
        rng = np.random.default_rng(SEED)
        count, m = int(self.groups.max()) + 1, len(places)
        at, of = np.tile(places, (count, 1)), np.repeat(np.arange(count), m)
        spread, directions = np.linalg.eigh(self._curvature())
        spread = np.maximum(spread, 1 / self.variances.max())
        out = []
        for step in rng.standard_normal((_RESPONSES, len(self.mode))) / np.sqrt(spread):
            hyper = np.clip(self.mode + step @ directions.T, *self.bounds.T)
            out.append(self._draw(hyper, at, of, rng).reshape(_DRAWS, count, m).min(2))
        return np.vstack(out)

    def _draw(self, hyper: FloatArray, at: FloatArray, of: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return random responses at the places `at` of the groups `of`, shape (draws, places)."""
        scale = np.sqrt(np.exp(hyper[:-3]))[self.axis_of]
        shared, own, noise = np.exp(hyper[-3:])
        known, new = self.points * scale, at * scale

        def covariance(a: FloatArray, ga: IntArray, b: FloatArray, gb: IntArray) -> FloatArray:
            same = ga[:, None] == gb[None, :]
            return np.asarray((shared + own * same) * _matern(squared_distances(a, b))[0] + _CONSTANT * same)

        inner = covariance(known, self.groups, known, self.groups) + np.diag(noise * self.scatter + _JITTER)
        cross = covariance(new, of, known, self.groups)
        half = np.linalg.solve(np.linalg.cholesky(inner), cross.T)
        left = covariance(new, of, new, of) - half.T @ half
        root = np.linalg.cholesky(left + 1e-5 * (shared + own + _CONSTANT) * np.eye(len(at)))
        mean = cross @ np.linalg.solve(inner, self.y)
        return np.asarray(mean + rng.standard_normal((_DRAWS, len(at))) @ root.T, dtype=np.float64)


def _matern(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the Matern 5/2 correlation at these squared distances, and its derivative with respect to them.

    It is less smooth than the squared exponential, whose intervals are too short where a response has a kink.
    """
    r = np.sqrt(5 * squared)
    tail = np.exp(-r)
    return (1 + r + r**2 / 3) * tail, -(5 / 6) * (1 + r) * tail
