"""Sudden moves of noisy series: jumps of a loss, a rise where it should fall, outliers of gradient norms.

Nothing here assumes normal noise. How large a move must be is read off the moves that the same series makes all the time: the
lower half of its upward moves gives their scale, and an exponential tail of that scale says how far the largest of them may reach
by chance. Noise with lighter tails (normal, or log-normal on a log scale) is rarer beyond that limit than promised; at most a
quarter of the series may be outliers before the scale itself follows them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats import wandering
from advisor.stats.curve import HUGE

FEWEST = 20
"""Points below which a series does not show what moves are usual for it."""
_TENFOLD = 10.0
_BLOWN_UP = 3.0
"""Times its start from which on a loss has blown up. Ours."""
_WIDTHS = (2, 6, 18, 54)
"""Points for which a jump must last, tried one after the other: never one, which may be a single odd minibatch."""
_CHANCES = np.logspace(-12, 0, 97)
_NORMAL_QUARTILE = 0.6745
_MANY = 9
_PLENTY = 80
_FASTER = 1.5


@dataclass(frozen=True, slots=True)
class Tail:
    """The upper tail of a series' values, as an exponential tail of the scale that the bulk shows."""

    base: float
    """Where the tail begins."""
    scale: float
    """Mean excess over the base, from the smaller half of the excesses."""
    tries: float
    """Values above the base, any of which may be the largest."""
    freedom: float
    """Independent excesses that the scale comes from."""

    def p(self, value: float) -> float:
        """How often the largest of the values would reach `value` by chance, at most 1: exact for an exponential tail."""
        excess = value - self.base
        if not excess > 0:
            return 1.0
        return min(1.0, self.tries * math.exp(-self.freedom * math.log1p(excess / (self.freedom * self.scale))))

    def limit(self, chance: float) -> float:
        """The value that the largest one passes with this probability."""
        grown = math.expm1(math.log(max(self.tries / chance, 1.0)) / self.freedom)
        return self.base + self.freedom * self.scale * grown


def upper_tail(values: FloatArray) -> Tail | None:
    """The upper tail of values (n,), finite, over their median; None if fewer than 4 lie above it."""
    centre = float(np.median(values)) if len(values) else 0.0
    excess = np.sort(values[values > centre]) - centre
    return _tail(excess, centre, len(excess), 1.0) if len(excess) >= 4 else None


def level_tail(moves: FloatArray, width: int) -> Tail | None:
    """The upper tail of moves (n,) between levels of `width` points each; None if fewer than 4 lie above their median.

    Its scale comes from falls as well as from rises, which noise makes alike. Where there are many moves it begins at their upper
    quartile, where tails lighter than exponential show that they are. What neighbouring moves share lessens what the scale is known
    from: counting half the width, no simulated noise, heavy-tailed or autocorrelated, broke the promise.
    """
    centre = float(np.median(moves)) if len(moves) else 0.0
    above = int(np.count_nonzero(moves > centre))
    if above < 4:
        return None
    away = np.sort(np.abs(moves - centre))
    overlap = (width + 1) // 2
    half = len(away) // 2
    if len(away) < _PLENTY * overlap or away[-1] <= away[half]:
        return _tail(away, centre, above, overlap)
    return _tail(away[half:] - away[half], centre + float(away[half]), above / 2, overlap)


def _tail(excess: FloatArray, base: float, tries: float, overlap: float) -> Tail:
    """From excesses (n,), sorted: those beyond the median are only counted, so that outliers among them do not tell."""
    half = max(len(excess) // 2, 1)
    scale = (float(excess[:half].sum()) + (len(excess) - half) * float(excess[half - 1])) / half
    return Tail(base, max(scale, 1e-300), tries, max(half / overlap, 1.0))


# --- jumps ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Jump:
    """A sudden rise of a loss that had fallen before."""

    index: int
    """The first point after the rise."""
    before: float
    """The level just before, in the loss's unit."""
    after: float
    """The level just after."""
    points: int
    """For how many points the rise lasts at least."""
    share: float
    """The rise as a share of what the loss had fallen since the start of training."""
    p: float
    """How often the noise of this series would jump as far anywhere."""
    limit: float
    """The level that a jump from `before` passes once in twenty such series by chance."""
    log: bool
    """Whether shares are of the logarithm: so for a loss that had fallen tenfold or more, or blew up."""


def largest_jump(values: FloatArray, first: int, rates: FloatArray | None = None) -> Jump | None:
    """The least likely jump of a loss (n,), finite, at index `first` or later; None for fewer than 20 points or without a fall.

    rates: the learning rate at each point (n,); a rise across which it grew by half or more is the schedule's doing and no jump.
    """
    if len(values) < FEWEST:
        return None
    y, log = _scaled(values, first)
    jumps = [j for width in _WIDTHS if (j := _jump(y, width, first, rates)) is not None]
    if not jumps:
        return None
    p, index, before, after, limit, width, share = min(jumps)
    back = _exp if log else float
    return Jump(index, back(before), back(after), width, share, min(1.0, len(jumps) * p), back(before + limit), log)


def _scaled(values: FloatArray, first: int) -> tuple[FloatArray, bool]:
    """The series on the scale on which its moves are to be measured, cut to what can be squared.

    The logarithm if it fell tenfold, or if from index `first` on it rose to a multiple of its start: what is left of a loss that
    blew up scatters on that scale, and the fall before would be lost in its noise.
    """
    start, known = max(float(values[0]), float(np.median(values[:3]))), levels(values, 3)
    fell, blew_up = start > _TENFOLD * float(known.min()), float(known[first:].max(initial=start)) > _BLOWN_UP * start
    if (values > 0).all() and (fell or blew_up):
        return np.log(values), True
    return np.clip(values, -HUGE, HUGE), False


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _jump(
    y: FloatArray, width: int, first: int, rates: FloatArray | None
) -> tuple[float, int, float, float, float, int, float] | None:
    back = width + 1
    at = np.arange(max(back, first), len(y) - width + 1)
    if len(at) < FEWEST // 2:
        return None
    after = levels(y, width)[at]
    before = levels(y, back)[at - back]
    moves = after - before
    tail = level_tail(moves, width)
    if tail is None:
        return None
    chosen = moves if rates is None else np.where(_raised(rates, back, width)[at - back], -np.inf, moves)
    lows = np.minimum.accumulate(levels(y, 3))
    fall = max(float(y[0]), float(np.median(y[:3]))) - lows[at - 3]
    i = int(np.argmax(chosen))
    if not math.isfinite(chosen[i]) or tail.p(float(fall[i])) > 0.05:
        return None
    p, limit = tail.p(float(moves[i])), tail.limit(0.05)
    return p, int(at[i]), float(before[i]), float(after[i]), limit, width, float(moves[i] / max(fall[i], 1e-300))


def _raised(rates: FloatArray, back: int, width: int) -> BoolArray:
    """Whether the learning rate grew from the `back` points before to the `width` points after, shape (n - back - width + 1,)."""
    before = sliding_window_view(rates, back).min(axis=1)[: len(rates) - back - width + 1]
    after = sliding_window_view(rates, width).max(axis=1)[back:]
    return np.asarray(after > _FASTER * np.maximum(before, 1e-300))


def levels(values: FloatArray, width: int) -> FloatArray:
    """Lower medians of windows of `width` points, shape (n - width + 1,): the k-th of values[k : k + width]."""
    width = min(width, len(values))
    middle = (width - 1) // 2
    windows = sliding_window_view(values, width)
    return np.asarray(np.partition(windows, middle, axis=1)[:, middle], dtype=np.float64)


# --- a rise at the start --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarlyRise:
    """How far a loss rose above its first value early in training."""

    index: int
    """The first point of the highest level."""
    start: float
    """The first value."""
    level: float
    """The highest level early in training, in the loss's unit."""
    share: float
    """The rise as a share of what the whole training gained below the first value; infinite where it gained nothing."""
    p: float
    """How often noise alone, of the first value and of the level, would make as large a rise."""
    limit: float
    """The level that noise passes once in twenty runs."""


def early_rise(values: FloatArray, early: int, width: int) -> EarlyRise | None:
    """The largest rise of a loss (n,), finite, over its first value within its first `early` points; None if too few to tell.

    width: for how many points a level must last. The first value is one minibatch: it may lie low by chance (a normal lower tail:
    a mean over a batch has no heavy one), the highest level may be high by chance. Both are read off the run's own noise, in
    the early part or after it, wherever it is smaller: an unstable start is noisy because it is unstable. On a log scale if all
    values are positive, since noise grows with the loss. A start that is not told from what comes after it, where the curve never
    falls, is none: noise that wanders over tens of points rises as far.
    """
    if early < 2 or len(values) < 8:
        return None
    log = bool((values > 0).all())
    y = np.log(values) if log else np.clip(values, -HUGE, HUGE)
    back = _exp if log else float
    start = float(y[0])
    noise = residuals(y)
    own = _quieter(noise[1:early], noise[early:])
    found: list[tuple[float, float, int, float]] = []
    widths = [w for w in (width, 3 * width) if w < early]
    widths += [w for w in (10 * width,) if 4 * w <= len(own)]
    for wide in widths:
        reached = levels(y[1:], wide)[: early - 1]
        i = int(np.argmax(reached))
        limits = _rise_limits(own, wide, len(reached))
        passed = np.flatnonzero(reached[i] - start > limits)
        p = float(_CHANCES[passed[0]]) if len(passed) else 1.0
        found.append((p, -float(reached[i]), i + 1, float(np.interp(math.log(0.05), np.log(_CHANCES), limits))))
    p, level, index, limit = min(found)
    gained = float(values[0]) - float(levels(values, 3).min())
    rise = min(back(-level), HUGE) - float(values[0])
    share = rise / gained if gained > 0 else math.inf
    p = max(min(1.0, len(found) * p), wandering.chance_of_start(y, early))
    return EarlyRise(index, back(start), back(-level), share, p, back(start + limit))


def _rise_limits(noise: FloatArray, width: int, tries: int) -> FloatArray:
    """How far the highest of `tries` levels may lie over the first value by chance, for each of `_CHANCES`.

    A level of a few points may hold odd minibatches: half of the chance goes to its exponential tail, half to the first value. One
    of many points is as good as normal.
    """
    low, known = _lower_spread(noise)
    tail = level_tail(-noise, 1) if len(noise) >= _PLENTY else None
    if tail is None:
        first = low * stats.t.isf(_CHANCES / 2, known)
    else:
        tail = replace(tail, tries=tail.tries / len(noise))
        first = np.array([tail.limit(c / 2) for c in _CHANCES])
    moves = levels(noise, width)
    tail = level_tail(moves, width) if width < _MANY else None
    if tail is not None:
        tail = replace(tail, tries=tail.tries * tries / len(moves))
        return np.asarray(first + [tail.limit(c / 2) for c in _CHANCES], dtype=np.float64)
    spread = max(float(np.median(np.abs(moves - np.median(moves)))) / _NORMAL_QUARTILE, 1e-300)
    apart = max(2 * tries / width, 2.0)
    return np.asarray(np.hypot(first, spread * stats.t.isf(_CHANCES / apart, known)), dtype=np.float64)


def _quieter(one: FloatArray, other: FloatArray) -> FloatArray:
    """The longer of two stretches of noise, unless the other is plainly quieter: less than half, on no few points."""
    long, short = (one, other) if len(one) > len(other) else (other, one)
    if len(long) < FEWEST:
        return np.concatenate([one, other])
    return short if len(short) >= FEWEST and 2 * _lower_spread(short)[0] < _lower_spread(long)[0] else long


def _lower_spread(noise: FloatArray) -> tuple[float, float]:
    """Standard deviation of the noise, from its lower half, and its degrees of freedom; of few points the plain one."""
    if len(noise) < FEWEST:
        return float(noise.std(ddof=1)), len(noise) - 1.0
    return (float(np.median(noise)) - float(np.quantile(noise, 0.25))) / _NORMAL_QUARTILE, 0.37 * len(noise)


def residuals(values: FloatArray, width: int = 9) -> FloatArray:
    """Values less the median of their `width` - 1 neighbours, shape (n,); a smooth trend drops out."""
    neighbours = np.ones(width, dtype=np.bool_)
    neighbours[width // 2] = False
    return np.asarray(values - median_filter(values, footprint=neighbours, mode="mirror"), dtype=np.float64)


# --- outliers -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outliers:
    """Values of a positive series that lie far above its running median."""

    indices: IntArray
    """Where they are, largest ratio first."""
    ratios: FloatArray
    """Value over running median, shape (n,), of all points."""
    limit: float
    """The ratio that the largest of all points passes by chance with the promised probability."""
    p: float
    """How often the bulk of the ratios would bring one as large as the largest."""

    @property
    def largest(self) -> float:
        """The largest ratio."""
        return float(self.ratios.max())


def outliers(values: FloatArray, chance: float, factor: float, width: int = 31) -> Outliers | None:
    """Values (n,), positive and finite, that exceed their running median `factor`-fold and more than `chance` explains.

    None for fewer than 20 points. Ratios are compared as logarithms: norms of healthy runs are about log-normal, whose tail is
    lighter than the exponential one that sets the limit.
    """
    if len(values) < FEWEST:
        return None
    logs = np.log(values)
    away = logs - median_filter(logs, size=min(width, 2 * (len(values) // 4) + 1), mode="nearest")
    tail = upper_tail(away)
    if tail is None:
        return None
    limit = max(tail.limit(chance), math.log(factor))
    order = np.argsort(-away, kind="stable")
    far = order[away[order] > limit]
    ratios = np.exp(np.minimum(away, 700.0))
    return Outliers(far, ratios, math.exp(min(tail.limit(chance), 700.0)), tail.p(float(away.max())))


def diverged_at(values: FloatArray) -> int | None:
    """The index from which a curve (n,) stays non-finite to its end; None if it ends finite or is empty."""
    if not len(values) or math.isfinite(values[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(values))
    return int(finite[-1]) + 1 if len(finite) else 0
