"""Detects sudden changes of noisy losses: jumps, and rises early in training. Outliers of gradient norms are detected by the
module `spikes`.

No test assumes normal noise: the tail of the series' own changes (module `tails`) bounds the largest change by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import MAX_FINITE_VALUE, BoolArray, FloatArray, IntArray
from advisor.stats import wandering
from advisor.stats.tails import MIN_CHANGES_FOR_QUARTILE, MIN_POINTS, tail_of_level_changes

_MIN_FALL_FOR_LOG = 10.0
_MIN_BLOWUP_RATIO = 3.0
"""A loss has blown up if it reaches at least this multiple of its first value."""
_JUMP_WIDTHS = (2, 6, 18, 54)
"""Minimum durations, in points, of the jumps that are searched. Jumps of one point are left out, because a single atypical
minibatch is not a jump."""
_TABULATED_PROBABILITIES = np.logspace(-12, 0, 97)
_NORMAL_QUARTILE = 0.6745
_MIN_NORMAL_POINTS = 9
"""Minimum number of points whose median has nearly normal noise; atypical minibatches affect a median of fewer points."""
_MIN_UNDONE_SHARE = 0.5
"""A loss has collapsed if its end undoes at least this share of its earlier fall."""
_MIN_SHARE_ABOVE_NOISE = 0.9
"""Minimum share of the levels after a collapse that must lie above the noise."""
_STEEPEST_SHARE = 0.05
"""Share of all changes of a loss, the largest ones, that count as its steepest rises."""
_MIN_LEARNING_RATE_GROWTH = 1.5
"""A rise of the loss is due to the schedule if the learning rate grows by at least this factor across it."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A sudden rise of a loss that had fallen before."""

    index: int
    """Index of the first point after the rise of the loss."""
    level_before: float
    """Level of the loss just before its jump."""
    level_after: float
    """Level of the loss just after its jump."""
    points: int
    """Minimum number of points for which the loss stays high after its jump."""
    share: float
    """Size of the jump as a share of the fall of the loss since the start of training."""
    p_value: float
    """p-value: probability that noise alone causes a jump at least this large anywhere in the series."""
    noise_limit: float
    """Level that noise alone would reach in one of 20 loss curves without jumps."""
    is_log: bool
    """True if the jump is measured in the logarithm of the loss, because the loss fell tenfold or blew up."""


def largest_jump(
    values: FloatArray, first: int, rates: FloatArray | None = None, explained_jumps: Sequence[Jump] = ()
) -> Jump | None:
    """Return the most significant jump, at index `first` or later, of a finite loss, shape (n,).

    Return None for fewer than 20 points or if the loss never fell. rates: learning rate at each point, shape (n,). If the
    learning rate grows by half or more across a rise, the schedule explains the rise. explained_jumps: jumps to ignore.
    """
    if len(values) < MIN_POINTS:
        return None
    y, log = _choose_scale(values, first)
    jumps = [j for width in _JUMP_WIDTHS if (j := _largest_rise(y, width, first, rates, explained_jumps)) is not None]
    return _most_significant_rise(jumps, log=log)


def lasting_jump(values: FloatArray, first: int, explained_jumps: Sequence[Jump] = ()) -> Jump | None:
    """Return a rise, at index `first` or later, that undoes half of the loss's earlier fall and lasts to the end of the curve.

    Return None if there is no such rise. explained_jumps: jumps of the loss to ignore. The noise is estimated before the rise,
    because a collapsed loss scatters more. Growing noise is no collapse, because it does not undo half of the earlier fall.
    """
    if len(values) < MIN_POINTS:
        return None
    y, log = _choose_scale(values, first)
    jumps = [j for width in _JUMP_WIDTHS[:3] if (j := _lasting_rise(y, width, first, explained_jumps)) is not None]
    return _most_significant_rise(jumps, log=log)


def _most_significant_rise(rises: Sequence[tuple[float, int, float, float, float, int, float]], *, log: bool) -> Jump | None:
    """Return the rise with the lowest p-value, corrected for the number of rises, in the unit of the loss; None without rises."""
    if not rises:
        return None
    p, index, level_before, level_after, limit, width, share = min(rises)
    to_unit = _clipped_exp if log else float
    return Jump(
        index,
        to_unit(level_before),
        to_unit(level_after),
        width,
        share,
        min(1.0, len(rises) * p),
        to_unit(level_before + limit),
        log,
    )


def _lasting_rise(
    y: FloatArray, width: int, first: int, explained_jumps: Sequence[Jump]
) -> tuple[float, int, float, float, float, int, float] | None:
    back = width + 1
    # Levels just after an explained jump would count as a collapse, so they are skipped.
    first_clear = max((jump.index + jump.points + back for jump in explained_jumps), default=0)
    at = np.arange(max(back + width + MIN_POINTS // 2, first, first_clear), len(y) - width + 1)
    if not len(at):
        return None
    levels_after, levels_before = running_medians(y, width), running_medians(y, back)
    mean_of_rest = np.cumsum(y[::-1])[::-1][at] / (len(y) - at)
    i = int(np.argmax(mean_of_rest - levels_before[at - back]))
    index, level = int(at[i]), float(levels_before[at[i] - back])
    fall = max(float(y[0]), float(np.median(y[:3]))) - float(running_medians(y[:index], 3).min())
    final = float(np.median(y[index:]))
    if final - level < _MIN_UNDONE_SHARE * fall:
        return None
    # Only changes shortly before the rise count as noise, because the loss falls more steeply earlier in training.
    moves = levels_after[back : index - width + 1] - levels_before[: index - width + 1 - back]
    moves = moves[-max(len(moves) // 2, MIN_POINTS // 2) :]
    tail = tail_of_level_changes(moves, width)
    if tail is None or tail.p_value(fall) > 0.05:
        return None
    tail = replace(tail, values_above_base=tail.values_above_base * max(len(at) / len(moves), 1.0))
    rise = float(np.quantile(levels_after[index:], 1 - _MIN_SHARE_ABOVE_NOISE)) - level
    return tail.p_value(rise), index, level, final, tail.limit(0.05), width, (final - level) / max(fall, 1e-300)


def steep_rises(values: FloatArray, width: int) -> BoolArray:
    """Return a mask, shape (n,), of the points of a finite loss within one point of its steepest rises (5 % of all changes).

    width: number of points whose median is a level of the loss; a change is a difference between levels. The mask is all False
    for a loss with fewer than 20 points.
    """
    steep = np.zeros(len(values), dtype=np.bool_)
    if len(values) < MIN_POINTS or len(values) < 2 * width + 2:
        return steep
    y, back = _choose_scale(values, 0)[0], width + 1
    moves = running_medians(y, width)[back:] - running_medians(y, back)[: len(y) - width + 1 - back]
    steep[back : back + len(moves)] = (moves > 0) & (moves >= np.quantile(moves, 1 - _STEEPEST_SHARE))
    return np.asarray(np.convolve(steep, np.ones(3), "same") > 0, dtype=np.bool_)


def _choose_scale(values: FloatArray, first: int) -> tuple[FloatArray, bool]:
    """Return (loss on the scale on which its changes are measured, True if the scale is logarithmic).

    Values are clipped, so that their squares are finite. The scale is logarithmic if the loss fell tenfold, or blew up after
    index `first` so that its noise grew with it.
    """
    start, known = max(float(values[0]), float(np.median(values[:3]))), running_medians(values, 3)
    fell, blew_up = (
        start > _MIN_FALL_FOR_LOG * float(known.min()),
        float(known[first:].max(initial=start)) > _MIN_BLOWUP_RATIO * start,
    )
    if (values > 0).all() and (fell or blew_up):
        return np.log(values), True
    return np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE), False


def _clipped_exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _largest_rise(
    y: FloatArray, width: int, first: int, rates: FloatArray | None, explained_jumps: Sequence[Jump]
) -> tuple[float, int, float, float, float, int, float] | None:
    back = width + 1
    at = np.arange(max(back, first), len(y) - width + 1)
    if len(at) < MIN_POINTS // 2:
        return None
    levels_after = running_medians(y, width)[at]
    levels_before = running_medians(y, back)[at - back]
    moves = levels_after - levels_before
    tail = tail_of_level_changes(moves, width)
    if tail is None:
        return None
    candidates = np.where(_spans_explained_jump(explained_jumps, at, width), -np.inf, moves)
    if rates is not None:
        candidates = np.where(_learning_rate_grew(rates, back, width)[at - back], -np.inf, candidates)
    lows = np.minimum.accumulate(running_medians(y, 3))
    fall = max(float(y[0]), float(np.median(y[:3]))) - lows[at - 3]
    i = int(np.argmax(candidates))
    if not math.isfinite(candidates[i]) or tail.p_value(float(fall[i])) > 0.05:
        return None
    p, limit = tail.p_value(float(moves[i])), tail.limit(0.05)
    return (
        p,
        int(at[i]),
        float(levels_before[i]),
        float(levels_after[i]),
        limit,
        width,
        float(moves[i] / max(fall[i], 1e-300)),
    )


def _spans_explained_jump(explained_jumps: Sequence[Jump], at: IntArray, width: int) -> BoolArray:
    """Return a mask of the indices in `at` with an explained jump within `width` points before or after them."""
    mask = np.zeros(len(at), dtype=np.bool_)
    for jump in explained_jumps:
        mask |= np.abs(at - jump.index) <= width + jump.points + 1
    return mask


def _learning_rate_grew(rates: FloatArray, points_before: int, width: int) -> BoolArray:
    """Return a mask of pairs of neighbouring windows, True where the learning rate grew from the first window to the second."""
    min_before = sliding_window_view(rates, points_before).min(axis=1)[: len(rates) - points_before - width + 1]
    max_after = sliding_window_view(rates, width).max(axis=1)[points_before:]
    return np.asarray(max_after > _MIN_LEARNING_RATE_GROWTH * np.maximum(min_before, 1e-300))


def running_medians(values: FloatArray, width: int) -> FloatArray:
    """Return the lower median of each window of `width` points, shape (n - width + 1,); item k is that of values[k : k +
    width]."""
    width = min(width, len(values))
    middle = (width - 1) // 2
    windows = sliding_window_view(values, width)
    return np.asarray(np.partition(windows, middle, axis=1)[:, middle], dtype=np.float64)


# --- a rise at the start --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarlyRise:
    """A rise of the loss above its first value, early in training."""

    index: int
    """Index of the first point in the window with the highest level of the loss."""
    first_value: float
    """First value of the loss."""
    highest_level: float
    """Highest level of the loss early in training."""
    share: float
    """Size of the rise as a share of the later fall of the loss below its first value; infinite if it never falls below."""
    p_value: float
    """p-value: probability that noise in the first value and in the highest level causes a rise at least this large."""
    noise_limit: float
    """Level of the loss that noise alone exceeds in one of 20 runs."""


def early_rise(values: FloatArray, early_points: int, width: int) -> EarlyRise | None:
    """Return the largest rise of a finite loss, shape (n,), above its first value within the first `early_points` points.

    Return None if there are too few points. width: number of points whose median is a level of the loss. The noise is estimated
    from the quieter part of the curve, early or late, because an unstable start is itself noisy. If all losses are positive,
    their logarithms are compared, because noise grows with the loss. Noise may lower the first value (with a normal tail,
    because it is a mean over a batch) or raise the highest level. The p-value is at least that of
    `wandering.p_value_of_unusual_start`, because autocorrelated noise may cause an equal rise.
    """
    if early_points < 2 or len(values) < 8:
        return None
    log = bool((values > 0).all())
    y = np.log(values) if log else np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    to_unit = _clipped_exp if log else float
    start = float(y[0])
    noise = local_residuals(y)
    quiet = _quieter_series(noise[1:early_points], noise[early_points:])
    candidates: list[tuple[float, float, int, float]] = []
    widths = [w for w in (width, 3 * width) if w < early_points]
    widths += [w for w in (10 * width,) if 4 * w <= len(quiet)]
    for points in widths:
        early_levels = running_medians(y[1:], points)[: early_points - 1]
        i = int(np.argmax(early_levels))
        limits = _rise_limits(quiet, points, len(early_levels))
        exceeded = np.flatnonzero(early_levels[i] - start > limits)
        p = float(_TABULATED_PROBABILITIES[exceeded[0]]) if len(exceeded) else 1.0
        candidates.append(
            (p, -float(early_levels[i]), i + 1, float(np.interp(math.log(0.05), np.log(_TABULATED_PROBABILITIES), limits)))
        )
    p, level, index, limit = min(candidates)
    gain = float(values[0]) - float(running_medians(values, 3).min())
    rise = min(to_unit(-level), MAX_FINITE_VALUE) - float(values[0])
    share = rise / gain if gain > 0 else math.inf
    p = max(min(1.0, len(candidates) * p), wandering.p_value_of_unusual_start(y, early_points))
    return EarlyRise(index, to_unit(start), to_unit(-level), share, p, to_unit(start + limit))


def _rise_limits(noise: FloatArray, width: int, tries: int) -> FloatArray:
    """Return, for each probability in `_TABULATED_PROBABILITIES`, the rise that the highest of `tries` levels exceeds by chance
    with this probability.

    The median of many points has nearly normal noise. The median of few points may contain atypical minibatches, so it gets an
    exponential tail and half of the probability.
    """
    deviation, freedom = _noise_deviation(noise)
    tail = tail_of_level_changes(-noise, 1) if len(noise) >= MIN_CHANGES_FOR_QUARTILE else None
    if tail is None:
        first_value = deviation * stats.t.isf(_TABULATED_PROBABILITIES / 2, freedom)
    else:
        tail = replace(tail, values_above_base=tail.values_above_base / len(noise))
        first_value = np.array([tail.limit(c / 2) for c in _TABULATED_PROBABILITIES])
    moves = running_medians(noise, width)
    tail = tail_of_level_changes(moves, width) if width < _MIN_NORMAL_POINTS else None
    if tail is not None:
        tail = replace(tail, values_above_base=tail.values_above_base * tries / len(moves))
        return np.asarray(first_value + [tail.limit(c / 2) for c in _TABULATED_PROBABILITIES], dtype=np.float64)
    spread = max(float(np.median(np.abs(moves - np.median(moves)))) / _NORMAL_QUARTILE, 1e-300)
    share = max(2 * tries / width, 2.0)
    return np.asarray(np.hypot(first_value, spread * stats.t.isf(_TABULATED_PROBABILITIES / share, freedom)), dtype=np.float64)


def _quieter_series(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the longer of two noise series, or the shorter one if it has enough points and less than half of the scatter."""
    long, short = (one, other) if len(one) > len(other) else (other, one)
    if len(long) < MIN_POINTS:
        return np.concatenate([one, other])
    return short if len(short) >= MIN_POINTS and 2 * _noise_deviation(short)[0] < _noise_deviation(long)[0] else long


def _noise_deviation(noise: FloatArray) -> tuple[float, float]:
    """Return (standard deviation, degrees of freedom) of noise, from its lower half or, for few points, from all points."""
    if len(noise) < MIN_POINTS:
        return float(noise.std(ddof=1)), len(noise) - 1.0
    return (float(np.median(noise)) - float(np.quantile(noise, 0.25))) / _NORMAL_QUARTILE, 0.37 * len(noise)


def local_residuals(values: FloatArray, width: int = 9) -> FloatArray:
    """Return the difference between each value and the median of its `width` - 1 neighbours, shape (n,), which cancels a smooth
    trend."""
    neighbours = np.ones(width, dtype=np.bool_)
    neighbours[width // 2] = False
    return np.asarray(values - median_filter(values, footprint=neighbours, mode="mirror"), dtype=np.float64)
