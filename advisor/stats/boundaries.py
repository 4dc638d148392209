"""Where in a search space the good trials lie: crowding at its ends, the response along one axis, how far to widen a range."""

from __future__ import annotations

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import Domain, FloatArray, IntArray, along, hard_limits, rounded
from advisor.stats import surface
from advisor.stats.outliers import Side

SEED = 0
DRAWS = 2000
"""Draws from the posterior of a response."""
SURFACE = 0.25
"""Share of the false alarms that the response surface may raise: it is asked second, for what one axis at a time cannot show."""
ENOUGH = 0.5
"""How surely a range that is widened reaches to where the fitted response turns: as likely as not, because the next round moves it
again if it must, and a wider range is sampled less densely."""
LEAN = 0.2
"""P-value up to which the trials that did not fail lean to an end, too; with it, simulated studies of noise kept the promise where
trials fail beyond a threshold."""
DEGREE = 3
"""Degree of the polynomial along one axis."""
_DECAY = 0.25
"""Prior variance of a degree over that of the degree below: smooth responses before wiggly ones."""
_GRID = np.linspace(0, 1, 41)


# --- do the best crowd an end? --------------------------------------------------------------------------------------------------


def scores(costs: FloatArray) -> FloatArray:
    """Logarithm of each cost's rank share, (n,), centred: tells apart the best well, the bad hardly; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    logs = np.log((ranks - 0.5) / len(ranks))
    return np.asarray(logs - logs.mean(), dtype=np.float64)


def gains(costs: FloatArray) -> FloatArray:
    """Costs (n,) on their own scale, cut off at their median and centred: the shape of the response among the good half.

    NaN costs are the worst; costs too large to subtract are all alike, 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.minimum(np.where(np.isnan(costs), np.nanmax(costs), costs), np.nanmedian(costs))
        centred = good - good.mean()
    return centred if np.isfinite(centred).all() and np.isfinite(centred.std()) else np.zeros(len(costs))


def crowding(positions: FloatArray, values: FloatArray) -> FloatArray:
    """P-values (d, 2) that low values crowd the low and the high end of each of d axes, adjusted for looking at all 2 d.

    positions: (n, d), NaN where a point has no such axis; values: (n,). Correlation of value and rank of position; permutations of
    the values (all of them for 7 points or fewer), largest over the axes (Westfall and Young), so whatever the sampling was, it is
    the same under the null. Axes without variation have p = 1.
    """
    n = len(values)
    ranks = np.apply_along_axis(_centred_ranks, 0, positions)
    y = values - values.mean()
    size = np.sqrt((y**2).sum())
    if n < 2 or size == 0 or not ranks.any():
        return np.ones((positions.shape[1], 2))
    y = y / size
    observed = y @ ranks
    largest = np.abs(_shuffled(y) @ ranks).max(1)
    p = [(np.mean(largest >= s * observed[:, None] - 1e-9, axis=1)) for s in (1, -1)]
    return np.stack(p, axis=1)


def _shuffled(values: FloatArray) -> FloatArray:
    """Permutations of the values, the first one being the values themselves."""
    n = len(values)
    if n <= 7:
        every = np.array(list(permutations(range(n))))
        return np.asarray(values[every], dtype=np.float64)
    times = 4999 if n <= 200 else 1999
    mixed = np.random.default_rng(SEED).permuted(np.tile(values, (times, 1)), axis=1)
    return np.vstack([values, mixed])


def _centred_ranks(positions: FloatArray) -> FloatArray:
    known = np.isfinite(positions)
    ranks = np.zeros(len(positions))
    if known.any():
        ranks[known] = stats.rankdata(positions[known])
        ranks[known] -= ranks[known].mean()
    size = np.sqrt((ranks**2).sum())
    return ranks / size if size > 0 else ranks


class Crowded(NamedTuple):
    """An end of an axis that good trials crowd and at which the response is best."""

    axis: int
    side: Side
    probability: float
    """That the best value lies at the end."""
    p: float
    """How often chance alone crowds any end as much."""


def crowded(
    numeric: list[FloatArray],
    choices: list[FloatArray],
    costs: FloatArray,
    edge: float,
    certainty: float,
    level: float,
) -> list[Crowded]:
    """The crowded ends of axes, positions (n,) in 0..1, surest first; costs (n,), NaN where a trial failed.

    One axis at a time by `crowding` and `responses`; where there are several axes, also by the response `surface`, which sees
    effects that hold only where another hyperparameter is good. It gets a quarter of the level then.
    """
    values, several = scores(costs), len(numeric) + len(choices) > 1
    p = crowding(np.stack(numeric, axis=1), values) / (1 - SURFACE if several else 1)
    found = {}
    if p.min() <= level:
        for axis, response in enumerate(responses(numeric, choices, values, edge)):
            ends: tuple[tuple[int, Side, float], ...] = ((0, "low", response.low), (1, "high", response.high))
            for column, side, probability in ends:
                if probability >= certainty and p[axis, column] <= level:
                    found[axis] = Crowded(axis, side, probability, float(p[axis, column]))
    if several:
        for end in surface.ends(numeric, choices, values, edge, certainty):
            chance = end.p * len(numeric) / SURFACE
            if chance <= level and end.axis not in found:
                found[end.axis] = Crowded(end.axis, end.side, end.probability, chance)
    kept = [c for c in found.values() if _leans(numeric[c.axis], costs, c.side)]
    return sorted(kept, key=lambda c: (c.p, -c.probability, c.axis))


def _leans(positions: FloatArray, costs: FloatArray, side: Side) -> bool:
    """Whether the trials that did not fail lean to this end of the axis by themselves; true where none failed.

    Failed trials count as the worst, so a threshold beyond which trials fail would crowd the other end all by itself.
    """
    fine = np.isfinite(costs) & np.isfinite(positions)
    if np.isfinite(costs).all() or fine.sum() < 3:
        return True
    p = crowding(positions[fine][:, None], scores(costs[fine]))
    return bool(p[0, 0 if side == "low" else 1] <= LEAN)


# --- the response along an axis -------------------------------------------------------------------------------------------------


class Response(NamedTuple):
    """What is known of the best value along one axis, from draws of its posterior."""

    low: float
    """Probability that the best position lies at the low end."""
    high: float
    step_low: float
    """How far beyond the low end the response turns, in widths of the range: the `ENOUGH` quantile of where draws of it, gone on as
    parabolas, do; infinite where so many do not turn."""
    step_high: float


def responses(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, edge: float) -> list[Response]:
    """The response of `values` (n,) to each numeric axis, positions (n,) in 0..1, given all the others, in the order of `numeric`.

    An additive model, a smooth cubic an axis and an effect a choice, whose prior variances and noise are those under which the
    values are likeliest (MacKay's evidence): an axis that does not matter fades out, and says nothing of where its best lies.
    `edge` is the share of the range that counts as its end.
    """
    blocks = [_cubic(p, _degree(p)) for p in numeric] + [_indicators(p) for p in choices]
    groups = np.repeat(np.arange(len(blocks)), [b.shape[1] for b in blocks])
    prior = np.concatenate(
        [_DECAY ** np.arange(b.shape[1]) if i < len(numeric) else np.ones(b.shape[1]) for i, b in enumerate(blocks)]
    )
    design = np.hstack(blocks)
    spread = values.std()
    mean, covariance = _evidence(design - design.mean(0), values / (spread or 1.0), groups, prior)
    out = []
    for i in range(len(numeric)):
        mine = np.flatnonzero(groups == i)
        out.append(_response(mean[mine], covariance[np.ix_(mine, mine)], edge))
    return out


def _degree(positions: FloatArray) -> int:
    return min(DEGREE, len(np.unique(positions[np.isfinite(positions)])) - 1)


def _cubic(positions: FloatArray, degree: int) -> FloatArray:
    """Legendre polynomials of degrees 1..degree with unit variance over 0..1, shape (n, degree); 0 without a position."""
    x = 2 * np.clip(np.nan_to_num(positions), 0, 1) - 1
    base = np.polynomial.legendre.legvander(x, max(degree, 0))[:, 1:] * np.sqrt(2 * np.arange(1, degree + 1) + 1)
    base[~np.isfinite(positions)] = 0
    return np.asarray(base, dtype=np.float64)


def _indicators(positions: FloatArray) -> FloatArray:
    levels = np.unique(positions[np.isfinite(positions)])
    return np.asarray(positions[:, None] == levels[None, :], dtype=np.float64)


def _evidence(
    design: FloatArray, values: FloatArray, groups: IntArray, prior: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Posterior mean and covariance of the weights, with a prior variance a group and the noise set by expectation maximisation."""
    n, count = len(values), int(groups.max()) + 1
    scale, noise = np.full(count, 1.0 / count), 0.3
    gram, cross = design.T @ design, design.T @ values
    sizes = np.bincount(groups, minlength=count)
    for _ in range(200):
        covariance = np.linalg.inv(gram / noise + np.diag(1 / np.maximum(scale[groups] * prior, 1e-12)))
        mean = covariance @ cross / noise
        second = (mean**2 + np.diag(covariance)) / prior
        after = np.bincount(groups, second, count) / np.maximum(sizes, 1)
        residual = values - design @ mean
        # Two imaginary residuals of 1 % of the variance: a handful of trials never proves the noise to be nil.
        left = float((residual @ residual + np.trace(gram @ covariance) + 0.02) / (n + 2))
        done = np.allclose(after, scale, rtol=1e-3) and abs(left - noise) < 1e-3 * noise
        scale, noise = after, left
        if done:
            break
    return mean, np.asarray(covariance, dtype=np.float64)


def _response(mean: FloatArray, covariance: FloatArray, edge: float) -> Response:
    if not len(mean):
        return Response(0.0, 0.0, 0.0, 0.0)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(mean)))
    draws = mean + np.random.default_rng(SEED).standard_normal((DRAWS, len(mean))) @ root.T
    best = _GRID[(draws @ _cubic(_GRID, len(mean)).T).argmin(1)]
    steps = []
    for end, inward in ((0.0, 1.0), (1.0, -1.0)):
        # Newton's step from the end to the turning point of each draw, from its slope and curvature there.
        f0, f1, f2 = (draws @ _cubic(np.clip(end + inward * np.array([0.0, 0.05, 0.1]), 0, 1), len(mean)).T).T
        slope, bend = (-3 * f0 + 4 * f1 - f2) / 0.1, (f0 - 2 * f1 + f2) / 0.05**2
        falls = slope > 0  # towards the end
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = np.where(falls, np.where(bend > 0, slope / bend, np.inf), 0.0)
        steps.append(float(np.quantile(turns, ENOUGH, method="higher")))
    return Response(float(np.mean(best <= edge)), float(np.mean(best >= 1 - edge)), steps[0], steps[1])


# --- how far to widen -----------------------------------------------------------------------------------------------------------


def widen(name: str, domain: Domain, side: str, step: float) -> tuple[float, float] | None:
    """The range (low, high) with one side moved out by `step` widths; None where a hard limit leaves nothing beyond.

    At least half of the range, on a logarithmic scale with a range of a decade or more at least one decade; at most the range
    again, on a logarithmic scale two decades. Where a hard limit is in the way, nine tenths of the way to it (a beta of 0.99
    becomes 0.999); declared limits may be reached.
    """
    assert domain.low is not None
    assert domain.high is not None
    least, most = 0.5, 1.0
    if domain.scale != "linear":
        ends = along(np.array([domain.low, domain.high]), domain.scale)
        decades = float(ends[1] - ends[0]) / math.log(10)
        least = min(max(decades / 2, 1 if decades >= 0.9 else 0), 2) / decades
        most = max(min(decades, 2) / decades, least)
    share = min(max(step, least), most)
    floor, ceiling = hard_limits(name, domain.type)
    try:
        end = float(domain.from_unit(-share if side == "low" else 1 + share))
    except OverflowError:
        return None
    # A range that is past a limit shows that the limit is none: a focal loss has a gamma, too.
    floor = floor if domain.low >= floor else -math.inf
    ceiling = ceiling if domain.high <= ceiling else math.inf
    now, limit = (domain.low, floor) if side == "low" else (domain.high, ceiling)
    if math.isfinite(limit) and not floor < end < ceiling:
        end = 0.0 if limit == -1e-300 else now + 0.9 * (limit - now)
    end = tidy(end, domain)
    if domain.type == "int" and floor >= 0:
        end = max(end, floor + 1)
    least, most = domain.reach
    end = min(max(end, least), most)
    if abs(end - now) <= 1e-6 * max(abs(end), abs(now)) or not math.isfinite(end):
        return None
    return (end, domain.high) if side == "low" else (domain.low, end)


def tidy(value: float, domain: Domain) -> float:
    """The value to three significant digits; whole in an int domain."""
    return float(round(value)) if domain.type == "int" else rounded(value)
