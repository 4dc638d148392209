"""Detects sudden changes of noisy losses: jumps, and rises early in training.

No test assumes normal noise. Instead, the tail of the changes of the series itself (module `tails`) bounds the change that noise
may cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import MAX_FINITE_VALUE, BoolArray, FloatArray
from advisor.stats.tails import MIN_CHANGES_FOR_QUARTILE, MIN_POINTS, tail_of_level_changes

_MIN_FALL_FOR_LOG = 10.0
_MIN_BLOWUP_RATIO = 3.0
_JUMP_WIDTHS = (2, 6, 18, 54)
"""Minimum durations of jumps, in points, for which jumps are searched. A single atypical minibatch is no jump."""
_TABULATED_PROBABILITIES = np.logspace(-12, 0, 97)
_NORMAL_QUARTILE = 0.6745
_MIN_NORMAL_POINTS = 9
"""Minimum number of points whose median has nearly normal noise; atypical minibatches affect a median of fewer points."""
_MIN_UNDONE_SHARE = 0.5
_MIN_SHARE_ABOVE_NOISE = 0.9
"""Minimum share of the levels after a collapse that lie above the noise."""
_STEEPEST_SHARE = 0.05
_MIN_LEARNING_RATE_GROWTH = 1.5
"""Minimum factor by which the learning rate grows across a rise of the loss if the schedule explains the rise."""
_MIN_LATE_POINTS = 10
_POINTS_PER_LEVEL = 5
"""Number of highest early values whose mean is the height of a rise."""
_MAX_INDEPENDENT_SHARE = 1 / 3
"""Maximum share of independent values in strongly autocorrelated noise, at a lag-1 autocorrelation of one half."""
_MAX_AUTOCORRELATION = 0.97
"""Maximum lag-1 autocorrelation of noise; a higher one counts as drift."""

_Rise: TypeAlias = tuple[float, int, float, float, float, int, float]
"""(p-value, index, level before, level after, noise limit, width, share) of a rise, on the scale of its changes."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A sudden rise of a loss that had fallen before."""

    index: int
    """Index of the first point after the rise."""
    level_before: float
    level_after: float
    points: int
    """Minimum number of points for which the loss stays high."""
    share: float
    """Size of the jump as a share of the fall since the start of training."""
    p_value: float
    """Probability that noise alone causes a jump at least this large anywhere in the series."""
    noise_limit: float
    """Level that noise alone would reach in one of 20 loss curves without jumps."""
    is_log: bool
    """True if the jump is measured in the logarithm of the loss, because the loss fell tenfold or blew up."""


def largest_jump(
    values: FloatArray, first: int, rates: FloatArray | None = None, explained: Sequence[Jump] = ()
) -> Jump | None:
    """Return the most significant jump, at index `first` or later, of a finite loss, shape (n,). None for fewer than 20 points, or
    if the loss never fell.

    rates: learning rate at each point; if it grows by half or more across a rise, the schedule explains the rise.
    explained: jumps to ignore.
    """
    if len(values) < MIN_POINTS:
        return None
    y, log = _choose_scale(values, first)
    rises = [j for width in _JUMP_WIDTHS if (j := _largest_rise(y, width, first, rates, explained)) is not None]
    return _most_significant_rise(rises, log=log)


def find_collapse(values: FloatArray, first: int, explained: Sequence[Jump] = ()) -> Jump | None:
    """Return a collapse: a rise, at index `first` or later, that undoes half of the earlier fall of the loss and lasts to the end;
    None if there is none.

    The noise is estimated before the rise, because a collapsed loss scatters more.
    """
    if len(values) < MIN_POINTS:
        return None
    y, log = _choose_scale(values, first)
    rises = [j for width in _JUMP_WIDTHS[:3] if (j := _lasting_rise(y, width, first, explained)) is not None]
    return _most_significant_rise(rises, log=log)


def _most_significant_rise(rises: Sequence[_Rise], *, log: bool) -> Jump | None:
    """Return the rise with the lowest p-value, corrected for the number of rises, as a jump in the unit of the loss."""
    if not rises:
        return None
    p, index, level_before, level_after, limit, width, share = min(rises)
    before, after, limit = (_clipped_exp(v) if log else v for v in (level_before, level_after, level_before + limit))
    return Jump(index, before, after, width, share, min(1.0, len(rises) * p), limit, log)


def _lasting_rise(y: FloatArray, width: int, first: int, explained: Sequence[Jump]) -> _Rise | None:
    offset = width + 1
    # Levels just after an explained jump would count as a collapse, so they are skipped.
    first_unexplained = max((jump.index + jump.points + offset for jump in explained), default=0)
    at = np.arange(max(offset + width + MIN_POINTS // 2, first, first_unexplained), len(y) - width + 1)
    if not len(at):
        return None
    after, before = running_medians(y, width), running_medians(y, offset)
    mean_until_end = np.cumsum(y[::-1])[::-1][at] / (len(y) - at)
    i = int(np.argmax(mean_until_end - before[at - offset]))
    index, level_before = int(at[i]), float(before[at[i] - offset])
    fall = max(float(y[0]), float(np.median(y[:3]))) - float(running_medians(y[:index], 3).min())
    final_level = float(np.median(y[index:]))
    if final_level - level_before < _MIN_UNDONE_SHARE * fall:
        return None
    # Only changes shortly before the rise count as noise, because the loss falls more steeply earlier in training.
    changes = after[offset : index - width + 1] - before[: index - width + 1 - offset]
    changes = changes[-max(len(changes) // 2, MIN_POINTS // 2) :]
    tail = tail_of_level_changes(changes, width)
    if tail is None or tail.p_value(fall) > 0.05:
        return None
    tail = replace(tail, value_count=tail.value_count * max(len(at) / len(changes), 1.0))
    height = float(np.quantile(after[index:], 1 - _MIN_SHARE_ABOVE_NOISE)) - level_before
    share = (final_level - level_before) / max(fall, 1e-300)
    return tail.p_value(height), index, level_before, final_level, tail.limit(0.05), width, share


def steep_rises(values: FloatArray, width: int) -> BoolArray:
    """Return a mask, shape (n,), of the points of a finite loss that are at most one point away from its steepest rises: 5 % of all
    changes between medians of `width` points. All False for fewer than 20 points."""
    is_steep = np.zeros(len(values), dtype=np.bool_)
    if len(values) < MIN_POINTS or len(values) < 2 * width + 2:
        return is_steep
    y, back = _choose_scale(values, 0)[0], width + 1
    changes = running_medians(y, width)[back:] - running_medians(y, back)[: len(y) - width + 1 - back]
    is_rise = (changes > 0) & (changes >= np.quantile(changes, 1 - _STEEPEST_SHARE))
    is_steep[back : back + len(changes)] = is_rise
    return np.asarray(np.convolve(is_steep, np.ones(3), "same") > 0, dtype=np.bool_)


def _choose_scale(values: FloatArray, first: int) -> tuple[FloatArray, bool]:
    """Return (loss on the scale on which changes are measured, True if this scale is logarithmic). The scale is logarithmic if the
    loss fell tenfold, or blew up after index `first`, because noise then grows with the loss."""
    start, smooth_losses = max(float(values[0]), float(np.median(values[:3]))), running_medians(values, 3)
    fell = start > _MIN_FALL_FOR_LOG * float(smooth_losses.min())
    blew_up = float(smooth_losses[first:].max(initial=start)) > _MIN_BLOWUP_RATIO * start
    if (values > 0).all() and (fell or blew_up):
        return np.log(values), True
    return np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE), False


def _clipped_exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _largest_rise(y: FloatArray, width: int, first: int, rates: FloatArray | None, explained: Sequence[Jump]) -> _Rise | None:
    offset = width + 1
    at = np.arange(max(offset, first), len(y) - width + 1)
    if len(at) < MIN_POINTS // 2:
        return None
    after = running_medians(y, width)[at]
    before = running_medians(y, offset)[at - offset]
    changes = after - before
    tail = tail_of_level_changes(changes, width)
    if tail is None:
        return None
    unexplained = changes.copy()
    for jump in explained:
        unexplained[np.abs(at - jump.index) <= width + jump.points + 1] = -np.inf
    if rates is not None:
        grew = _learning_rate_grew(rates, offset, width)[at - offset]
        unexplained = np.where(grew, -np.inf, unexplained)
    lowest_levels = np.minimum.accumulate(running_medians(y, 3))
    falls = max(float(y[0]), float(np.median(y[:3]))) - lowest_levels[at - 3]
    i = int(np.argmax(unexplained))
    if not math.isfinite(unexplained[i]) or tail.p_value(float(falls[i])) > 0.05:
        return None
    share = float(changes[i] / max(falls[i], 1e-300))
    return tail.p_value(float(changes[i])), int(at[i]), float(before[i]), float(after[i]), tail.limit(0.05), width, share


def _learning_rate_grew(rates: FloatArray, points_before: int, width: int) -> BoolArray:
    """Return a mask of pairs of neighbouring windows: True if the learning rate grew from the first window to the second."""
    min_before = sliding_window_view(rates, points_before).min(axis=1)[: len(rates) - points_before - width + 1]
    max_after = sliding_window_view(rates, width).max(axis=1)[points_before:]
    return np.asarray(max_after > _MIN_LEARNING_RATE_GROWTH * np.maximum(min_before, 1e-300))


def running_medians(values: FloatArray, width: int) -> FloatArray:
    """Return the lower median of each window of `width` points, shape (n - width + 1,)."""
    width = min(width, len(values))
    median_index = (width - 1) // 2
    windows = sliding_window_view(values, width)
    return np.asarray(np.partition(windows, median_index, axis=1)[:, median_index], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class EarlyRise:
    """A rise of the loss above its first value, early in training."""

    index: int
    """Index of the first point in the window with the highest level."""
    first_value: float
    highest_level: float
    share: float
    """Size of the rise as a share of the later fall below the first value; inf without such a fall."""
    p_value: float
    """Probability that noise in the first value and in the highest level causes a rise at least this large."""
    noise_limit: float
    """Level of the loss that noise alone exceeds in one of 20 runs."""


def early_rise(values: FloatArray, early_points: int, width: int) -> EarlyRise | None:
    """Return the largest rise of a finite loss, shape (n,), above its first value within the first `early_points` points; None for
    too few points.

    width: number of points whose median is a level. The noise is estimated from the quieter part of the loss, early or late,
    because an unstable start is itself noisy. Positive losses are compared by their logarithms, because noise grows with the
    loss. Noise may lower the first value or raise the highest level. The p-value is at least that of
    `p_value_of_unusual_start`, because autocorrelated noise may cause an equal rise.
    """
    if early_points < 2 or len(values) < 8:
        return None
    log = bool((values > 0).all())
    y = np.log(values) if log else np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    to_unit = _clipped_exp if log else float
    first_level = float(y[0])
    residuals = local_residuals(y)
    short, long = sorted((residuals[1:early_points], residuals[early_points:]), key=len)
    if len(long) < MIN_POINTS:
        noise = residuals[1:]
    else:
        is_quieter = len(short) >= MIN_POINTS and 2 * _noise_deviation(short)[0] < _noise_deviation(long)[0]
        noise = short if is_quieter else long
    candidates: list[tuple[float, float, int, float]] = []
    widths = [w for w in (width, 3 * width) if w < early_points]
    widths += [w for w in (10 * width,) if 4 * w <= len(noise)]
    for points in widths:
        levels = running_medians(y[1:], points)[: early_points - 1]
        i = int(np.argmax(levels))
        limits = _rise_limits(noise, points, len(levels))
        exceeded = np.flatnonzero(levels[i] - first_level > limits)
        p = float(_TABULATED_PROBABILITIES[exceeded[0]]) if len(exceeded) else 1.0
        limit = float(np.interp(math.log(0.05), np.log(_TABULATED_PROBABILITIES), limits))
        candidates.append((p, -float(levels[i]), i + 1, limit))
    p, level, index, limit = min(candidates)
    later_fall = float(values[0]) - float(running_medians(values, 3).min())
    rise_height = min(to_unit(-level), MAX_FINITE_VALUE) - float(values[0])
    share_of_fall = rise_height / later_fall if later_fall > 0 else math.inf
    p = max(min(1.0, len(candidates) * p), p_value_of_unusual_start(y, early_points))
    return EarlyRise(index, to_unit(first_level), to_unit(-level), share_of_fall, p, to_unit(first_level + limit))


def _rise_limits(noise: FloatArray, width: int, tries: int) -> FloatArray:
    """Return, for each probability in `_TABULATED_PROBABILITIES`, the rise that the highest of `tries` levels exceeds by chance
    with this probability. A level of few points may contain atypical minibatches, so its noise gets an exponential tail."""
    deviation, freedom = _noise_deviation(noise)
    tail = tail_of_level_changes(-noise, 1) if len(noise) >= MIN_CHANGES_FOR_QUARTILE else None
    if tail is None:
        first_limits = deviation * stats.t.isf(_TABULATED_PROBABILITIES / 2, freedom)
    else:
        tail = replace(tail, value_count=tail.value_count / len(noise))
        first_limits = np.array([tail.limit(c / 2) for c in _TABULATED_PROBABILITIES])
    levels = running_medians(noise, width)
    tail = tail_of_level_changes(levels, width) if width < _MIN_NORMAL_POINTS else None
    if tail is not None:
        tail = replace(tail, value_count=tail.value_count * tries / len(levels))
        return np.asarray(first_limits + [tail.limit(c / 2) for c in _TABULATED_PROBABILITIES], dtype=np.float64)
    level_sd = max(float(np.median(np.abs(levels - np.median(levels)))) / _NORMAL_QUARTILE, 1e-300)
    level_limits = level_sd * stats.t.isf(_TABULATED_PROBABILITIES / max(2 * tries / width, 2.0), freedom)
    return np.asarray(np.hypot(first_limits, level_limits), dtype=np.float64)


def _noise_deviation(noise: FloatArray) -> tuple[float, float]:
    """Return (standard deviation, degrees of freedom) of noise, from its lower half or, for few points, from all points."""
    if len(noise) < MIN_POINTS:
        return float(noise.std(ddof=1)), len(noise) - 1.0
    return (float(np.median(noise)) - float(np.quantile(noise, 0.25))) / _NORMAL_QUARTILE, 0.37 * len(noise)


def local_residuals(values: FloatArray) -> FloatArray:
    """Return each value minus the median of its eight neighbours, shape (n,); this cancels a smooth trend."""
    neighbour_mask = np.arange(9) != 4
    return np.asarray(values - median_filter(values, footprint=neighbour_mask, mode="mirror"), dtype=np.float64)


def p_value_of_unusual_start(values: FloatArray, early_points: int) -> float:
    """Return the probability that a curve without trend starts as low, or rises as high among its first `early_points` points.

    values: shape (n,), finite. The noise is estimated from residuals from a line through the second half, because the loss may blow
    up in the first half. The lag-1 autocorrelation determines the number of independent values. A curve that falls below its start
    has a trend, which makes a rise less likely. For such a curve, return the probability that strongly autocorrelated noise alone
    rises as high; 0 for other noise. Return 0 if the second half is too short.
    """
    half = values[max(early_points, len(values) // 2) :]
    if early_points < 2 or len(half) < _MIN_LATE_POINTS:
        return 0.0
    at = np.arange(len(half)) / len(half)
    slope, level = np.polyfit(at, half, 1)
    residuals = half - (level + slope * at)
    count, spread = _independent_values(residuals)
    if not spread > 0:
        return 0.0
    if float(np.median(half)) < values[0] - 2 * spread:
        count, spread = _independent_values(half - np.polyval(np.polyfit(at, half, 3), at))
        height = float(np.sort(values[:early_points])[-min(_POINTS_PER_LEVEL, early_points) :].mean() - values[0])
        if count > _MAX_INDEPENDENT_SHARE * len(half) or not (spread > 0 and height > 0):
            return 0.0
        tries = max(early_points * count / len(half), 1.0)
        return min(1.0, tries * float(stats.t.sf(height / (math.sqrt(2) * spread), max(count - 2, 1.0))))
    # For few values or heavy tails, the largest residual, divided by that expected for normal noise, determines the scale.
    normal_extreme = float(stats.norm.isf(0.5 / max(count, 2.0)))
    lower, upper = (max(spread, -float(residuals.min()) / normal_extreme), max(spread, float(residuals.max()) / normal_extreme))
    error, freedom = math.sqrt(1 + 4 / count), max(count - 2, 1.0)
    p_below = float(stats.t.sf((level - float(values[0])) / (lower * error), freedom))
    p_above = float(stats.t.sf((float(values[:early_points].max()) - level) / (upper * error), freedom))
    return min(1.0, 2 * min(p_below, p_above * max(early_points * count / len(half), 1.0)))


def _independent_values(residual: FloatArray) -> tuple[float, float]:
    """Return (number of independent values, standard deviation) of residuals about a line, by lag-1 autocorrelation."""
    n, squares = len(residual), float(residual @ residual)
    lag = float(residual[1:] @ residual[:-1]) / squares if squares > 0 else 0.0
    # Fitting the line lowers the estimated autocorrelation by about (1 + 4 lag) / n.
    lag = min(max(lag + (1 + 4 * lag) / n, 0.0), _MAX_AUTOCORRELATION)
    count = n * (1 - lag) / (1 + lag)
    return count, math.sqrt(squares / (n * max(1 - 2 / count, 0.2)))
