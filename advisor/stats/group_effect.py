"""The difference between groups of settings after all other hyperparameters are optimised away, with its uncertainty.

A Gaussian process is fitted to the costs of all groups together: a response that the groups share, a constant for each group, and a
deviation of each group's own, so that the groups may have their optima at different places. With a single group, the fit tells how
much better other settings may be. Each of these functions is the sum of one function per hyperparameter and a joint function of
all; their shares are fitted, because single effects show in fewer settings than joint ones. The best value of a group is the
minimum of its response near the good settings. Sources of the model: Swersky, Snoek and Adams, "Multi-task Bayesian optimization",
and Duvenaud, Nickisch and Rasmussen, "Additive Gaussian processes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats import difference
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
_REPEAT_DRAWS = 20_000
"""Number of draws of the means of repeated settings."""
MAX_PLACES = 240
"""Maximum product of the numbers of places and groups at which responses are drawn."""
_CANDIDATES = 2400
"""Number of random places near good settings, from which the most promising ones of each group are chosen."""
_GOOD = 4
"""Minimum number of good settings of each group; the search for its best value covers the lines between them."""
_CONSTANT = 4.0
"""Prior variance of a group's constant, in variances of the costs."""
_JITTER = 1e-4
# Prior means and variances, and bounds, of the model's parameters; see `_Model.mode` for their order.
_PRIOR_MEANS = (0.0, 0.0, 0.0, -1.0, -4.0)
_PRIOR_VARIANCES = (4.0, 4.0, 2.25, 2.0, 4.0)
_BOUNDS = ((-7.0, 5.0), (-5.0, 5.0), (-3.0, 5.0), (-12.0, 3.0), (-11.0, 1.0))


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
    blocks = _blocks([u[subset] for u in numeric], [u[subset] for u in choices])
    scale = _Scale(costs)
    model = _Model(blocks, groups, scale.scores(costs), scale.scatter(costs))
    best = scale.costs(model.best_values(_places(blocks, groups, costs)))
    return GroupEffect(best, float(scale.noise(model.mode[-1])))


def of_repeats(groups: Sequence[FloatArray]) -> GroupEffect:
    """Compare groups of one setting each by the costs (n,) of its repeats; at least one group has two or more.

    The groups share one variance, so the draws of their means follow Student's t with the degrees of freedom of all repeats.
    """
    variance = difference.pooled(list(groups))
    assert variance is not None
    deviation, freedom = variance
    rng = np.random.default_rng(SEED)
    deviations = deviation * np.sqrt(freedom / rng.chisquare(freedom, (_REPEAT_DRAWS, 1)))
    errors = rng.standard_normal((_REPEAT_DRAWS, len(groups))) / np.sqrt([len(g) for g in groups])
    return GroupEffect(np.array([g.mean() for g in groups]) + deviations * errors, deviation)


class _Scale:
    """The asinh scale on which responses are fitted: linear near the best cost, logarithmic far above it."""

    def __init__(self, costs: FloatArray) -> None:
        self.zero, self.unit = float(costs.min()), max(float(np.median(costs) - costs.min()), 1e-12)
        y = np.arcsinh((costs - self.zero) / self.unit)
        self.centre, self.spread = float(y.mean()), float(y.std()) or 1.0

    def scores(self, costs: FloatArray) -> FloatArray:
        """Return costs on this scale, centred and with unit variance over the costs that define it."""
        return np.asarray((np.arcsinh((costs - self.zero) / self.unit) - self.centre) / self.spread, dtype=np.float64)

    def costs(self, scores: FloatArray) -> FloatArray:
        """Return the costs at these scores."""
        return np.asarray(self.zero + self.unit * np.sinh(np.clip(self.centre + self.spread * scores, -20, 20)))

    def scatter(self, costs: FloatArray) -> FloatArray:
        """Return the relative noise variance of the scores; the derivative of asinh shrinks the noise of a high cost."""
        return np.asarray(1 / (1 + ((costs - self.zero) / self.unit) ** 2), dtype=np.float64)

    def noise(self, log_variance: FloatArray) -> FloatArray:
        """Return the standard deviation of costs near the best one, from the logarithm of the scores' noise variance."""
        return np.asarray(np.exp(log_variance / 2) * self.spread * self.unit, dtype=np.float64)


@dataclass(frozen=True)
class More:
    """Draws of the results of `number` more random settings, shape (draws,) each."""

    gains: FloatArray
    """The response at the best setting minus the best new response, at least 0 and free of noise."""
    noise: FloatArray
    """Standard deviation of the noise of a result."""
    best: FloatArray
    """The best new result, with its noise."""


def more(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray, number: int) -> More:
    """Draw the results of `number` more random settings; at most `MAX_PLACES` of them are drawn.

    numeric, choices: positions (n,) in 0..1, NaN without one; costs: (n,), NaN for failed trials, which count as the worst.
    """
    bounded = np.where(np.isnan(costs), np.nanmax(costs), costs)
    subset = np.sort(evenly_by_rank(bounded, _MAX_POINTS))
    known = [u[subset] for u in numeric], [u[subset] for u in choices]
    scale, bounded = _Scale(bounded[subset]), bounded[subset]
    blocks = _blocks(*known)
    groups = np.zeros(len(subset), dtype=np.int64)
    model = _Model(blocks, groups, scale.scores(bounded), scale.scatter(bounded))
    rng, again, best = np.random.default_rng(SEED), np.random.default_rng(SEED + 1), model.points[int(bounded.argmin())]
    gains, noise, bests = [], [], []
    for hyper in model.posterior(rng):
        at = np.vstack([best, _new_places(*known, min(number, MAX_PLACES), rng)])
        drawn = scale.costs(model.draw(hyper, model.distances_of(at), np.zeros(len(at), dtype=np.int64), rng))
        deviation = float(scale.noise(hyper[-1]))
        gains.append(np.maximum(drawn[:, 0] - drawn[:, 1:].min(axis=1), 0.0))
        noise.append(np.repeat(deviation, len(drawn)))
        bests.append((drawn[:, 1:] + deviation * again.standard_normal(drawn[:, 1:].shape)).min(axis=1))
    return More(np.concatenate(gains), np.concatenate(noise), np.concatenate(bests))


def _new_places(
    numeric: list[FloatArray], choices: list[FloatArray], number: int, rng: np.random.Generator
) -> FloatArray:
    """Return coordinates of random new settings: numbers uniform in 0..1, choices and missing values as in random old settings."""
    old = rng.integers(len((*numeric, *choices)[0]), size=number)
    drawn = [np.where(np.isfinite(u[old]), rng.random(number), np.nan) for u in numeric]
    whole = [np.concatenate([u, v]) for u, v in zip(numeric, drawn, strict=True)]
    return np.hstack(_blocks(whole, [np.concatenate([u, u[old]]) for u in choices]))[-number:]


def _blocks(numeric: list[FloatArray], choices: list[FloatArray]) -> list[FloatArray]:
    return [*(coordinates(u, True) for u in numeric), *(coordinates(u, False) for u in choices)]


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
    """Return places (m, coordinates) at which to seek the best value: good settings, and random places between and around two.

    Half of the random places lie on lines through two good settings. In the others, each coordinate is drawn separately: the best
    value of one hyperparameter is often known from other settings than that of another.
    """
    rng = np.random.default_rng(SEED)
    points = np.hstack(blocks) if blocks else np.zeros((len(costs), 1))
    count = int(groups.max()) + 1
    good = []
    for g in range(count):
        mine = np.flatnonzero(groups == g)
        good.append(mine[np.argsort(costs[mine], kind="stable")][: max(_GOOD, len(mine) // 3)])
    pairs = np.array([rng.choice(good[k % count], 2) for k in range(_CANDIDATES)])
    share = rng.uniform(-0.5, 1.5, (_CANDIDATES, points.shape[1]))
    share[::2] = share[::2, :1]
    between = share * points[pairs[:, 0]] + (1 - share) * points[pairs[:, 1]]
    inside = np.clip(np.vstack([points[np.concatenate(good)], between]), points.min(0), points.max(0))
    return np.asarray(inside, dtype=np.float64)


class _Model:
    """The fitted Gaussian process.

    `mode` holds the logarithms of the relevances, the logit of the additive share, and the logarithms of the shared variance, the
    groups' own variance and the noise.
    """

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
        repeat = np.array([axes, 1, 1, 1, 1])
        self.means, self.variances = np.repeat(_PRIOR_MEANS, repeat), np.repeat(_PRIOR_VARIANCES, repeat)
        self.bounds = np.repeat(np.array(_BOUNDS), repeat, axis=0)
        self.mode = self._fit()

    def _loss(self, at: FloatArray) -> tuple[float, FloatArray]:
        """Return minus the logarithm of the penalised likelihood, and its gradient."""
        relevance, (shared, own, noise) = np.exp(at[:-4]), np.exp(at[-3:])
        single, bends = _kernel(relevance[:, None, None] * self.distances)
        joint, bend = _kernel(np.tensordot(relevance, self.distances, 1))
        additive = float(expit(at[-4]))
        similar = additive * single.mean(0) + (1 - additive) * joint
        parts = shared * similar, own * similar * self.same
        covariance = parts[0] + parts[1] + _CONSTANT * self.same + np.diag(noise * self.scatter + _JITTER)
        root = np.linalg.cholesky(covariance)
        precision = np.linalg.inv(covariance)
        weights = precision @ self.y
        pull = np.outer(weights, weights) - precision
        both = pull * (shared + own * self.same)
        slope = relevance[:, None, None] * self.distances * (additive * bends / len(relevance) + (1 - additive) * bend)
        slopes = [-0.5 * np.sum(both * s) for s in slope]
        slopes += [-0.5 * additive * (1 - additive) * np.sum(both * (single.mean(0) - joint))]
        slopes += [-0.5 * np.sum(pull * part) for part in parts] + [-0.5 * noise * (pull.diagonal() @ self.scatter)]
        away = at - self.means
        loss = 0.5 * self.y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum(away**2 / self.variances)
        return float(loss), np.array(slopes) + away / self.variances

    def _fit(self) -> FloatArray:
        """Return the mode, the better of two local optima: from a poor start, the fit takes the response for noise."""
        found = []
        for noise in (-5.0, -1.0):
            start = np.array([*np.zeros(len(self.distances) + 2), -4.0, noise])
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
        """Return draws of each group's minimum over its most promising places, shape (draws, groups)."""
        rng = np.random.default_rng(SEED)
        count = int(self.groups.max()) + 1
        similar = _similarity(self.mode, self._distances(self.points, places))
        chosen = [places[self._promising(similar, g)[: MAX_PLACES // count]] for g in range(count)]
        at, of = self.distances_of(np.vstack(chosen)), np.repeat(np.arange(count), [len(c) for c in chosen])
        out = []
        for hyper in self.posterior(rng):
            drawn = self.draw(hyper, at, of, rng)
            out.append(np.stack([drawn[:, of == g].min(1) for g in range(count)], axis=1))
        return np.vstack(out)

    def posterior(self, rng: np.random.Generator) -> FloatArray:
        """Return draws of the parameters from a normal approximation of their posterior, shape (draws, parameters)."""
        spread, directions = np.linalg.eigh(self._curvature())
        spread = np.maximum(spread, 1 / self.variances.max())
        steps = rng.standard_normal((_RESPONSES, len(self.mode))) / np.sqrt(spread)
        return np.asarray(np.clip(self.mode + steps @ directions.T, *self.bounds.T), dtype=np.float64)

    def _promising(self, similar: FloatArray, group: int) -> IntArray:
        """Return the order of places by the mean minus standard deviation of the group's response, the lowest first."""
        mean, half = self._conditioned(self.mode, similar, (self.groups == group)[:, None])
        shared, own = np.exp(self.mode[-3:-1])
        deviation = np.sqrt(np.maximum(shared + own + _CONSTANT - (half**2).sum(0), 0))
        return np.argsort(mean - deviation, kind="stable")

    def distances_of(self, places: FloatArray) -> list[FloatArray]:
        """Return squared distances from the settings to the places and among the places, (axes, n, m) and (axes, m, m)."""
        return [self._distances(self.points, places), self._distances(places, places)]

    def _distances(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """Return squared distances along each axis, shape (axes, n, m)."""
        columns = [self.axis_of == axis for axis in range(len(self.distances))]
        return np.array([squared_distances(a[:, c], b[:, c]) for c in columns])

    def draw(self, hyper: FloatArray, at: list[FloatArray], of: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return random responses at places `at` (see `distances_of`) of the groups `of`, shape (draws, places)."""
        mean, half = self._conditioned(hyper, _similarity(hyper, at[0]), self.groups[:, None] == of)
        left = _covariance(hyper, _similarity(hyper, at[1]), of[:, None] == of) - half.T @ half
        shared, own = np.exp(hyper[-3:-1])
        root = np.linalg.cholesky(left + 1e-5 * (shared + own + _CONSTANT) * np.eye(len(of)))
        return np.asarray(mean + rng.standard_normal((_DRAWS, len(of))) @ root.T, dtype=np.float64)

    def _conditioned(self, hyper: FloatArray, similar: FloatArray, same: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the posterior mean at places (m,) of this similarity (n, m) to the settings, and the matrix (n, m) whose square is
        the reduction of the covariance. same: whether their groups are equal.
        """
        inner = _covariance(hyper, _similarity(hyper, self.distances), self.same)
        root = np.linalg.cholesky(inner + np.diag(np.exp(hyper[-1]) * self.scatter + _JITTER))
        half = np.linalg.solve(root, _covariance(hyper, similar, same))
        return np.asarray(np.linalg.solve(root, self.y) @ half), half


def _covariance(hyper: FloatArray, similar: FloatArray, same: BoolArray) -> FloatArray:
    """Return the prior covariance (n, m) of responses at places of this similarity; same: whether their groups are equal."""
    shared, own = np.exp(hyper[-3:-1])
    return np.asarray((shared + own * same) * similar + _CONSTANT * same)


def _similarity(hyper: FloatArray, distances: FloatArray) -> FloatArray:
    """Return the correlation (n, m) of responses within a group at squared distances (axes, n, m)."""
    away, additive = np.exp(hyper[: len(distances), None, None]) * distances, float(expit(hyper[-4]))
    single = np.mean([_kernel(d)[0] for d in away], axis=0)
    return np.asarray(additive * single + (1 - additive) * _kernel(np.sum(away, axis=0))[0])


def _kernel(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the Matérn correlation of order 5/2 at these squared distances, and its derivative with respect to them.

    A squared exponential would take responses with a sharp optimum or a cliff for smooth ones, and be too sure between settings.
    """
    away = np.sqrt(5 * squared)
    fall = np.exp(-away)
    return (1 + away + away**2 / 3) * fall, -5 / 6 * (1 + away) * fall
