"""Finds periods of validation curves that stand out from the noise spectrum, and compares these periods with the length of an
epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.ndimage import uniform_filter1d

from advisor.computed.curves.overfit import CostCurveFunction
from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray, as_number, words_of_name
from advisor.model.study import Curve, Study, Trial

MIN_POINTS = 32
_MIN_PERIOD_COUNT = 4
"""Minimum number of periods in the series; slower oscillations count as trend."""
_MIN_PERIOD_POINTS = 2.2
"""Minimum period, in points. Negatively autocorrelated noise oscillates with shorter periods."""
_ZERO_PADDING_FACTOR = 4
"""Factor by which zero padding refines the frequencies of the periodogram."""
_HARMONIC_COUNTS = (1, 2, 4)
"""Numbers of harmonics whose powers are added up; the test is made for each of these numbers."""
_MAX_SCALED_CHANGE = 4.0
"""Maximum point-to-point change, in units of the scatter of all changes; larger changes are clipped."""

_MIN_EQUAL_INTERVAL_SHARE = 0.95
_PERIODS_PER_EPOCH = (1, 2, 3)
_MAX_P_VALUE = 0.05
_DEFAULT_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Periodicity:
    """The period that stands out most from the noise spectrum."""

    period: float
    """Period of the series, in points."""
    p_value: float
    """p-value: probability that noise with the same spectrum shows an equally strong period at some frequency."""
    explained_share: float
    """Share of the variance of the detrended point-to-point changes that repeats with the period."""


@dataclass(frozen=True, slots=True)
class CurvePeriod:
    """The strongest period of one validation curve."""

    trial: Trial
    metric: str
    curve: Curve
    evaluation_interval: int
    strongest_period: Periodicity
    steps_per_epoch: float
    """Number of steps in an epoch; NaN if unknown."""
    p_value: float
    """p-value of the period times the number of curves examined (Bonferroni); 1 if momentum alone can cause the period."""
    misses_epoch_period: bool
    """True if the length of an epoch is known, but evaluations are too rare to show a period of one epoch."""

    @property
    def period_in_steps(self) -> float:
        return self.strongest_period.period * self.evaluation_interval

    @property
    def periods_per_epoch(self) -> int:
        """Number of periods per epoch, from 1 to 3; 0 if an epoch does not consist of 1 to 3 whole periods."""
        # Two frequencies count as equal if their difference is less than one cycle over the whole curve.
        tolerance = self.strongest_period.period / len(self.curve)
        if math.isfinite(self.steps_per_epoch):
            for count in _PERIODS_PER_EPOCH:
                apparent = _apparent_period(self.steps_per_epoch / count / self.evaluation_interval)
                if abs(apparent / self.strongest_period.period - 1) <= tolerance:
                    return count
        return 0

    def has_same_period(self, other: CurvePeriod) -> bool:
        """Return True if the other curve has the same period, measured in epochs or in steps."""
        own_period = self.period_in_steps
        if self.periods_per_epoch and math.isfinite(other.steps_per_epoch):
            own_period = other.steps_per_epoch / self.periods_per_epoch
        match = find_strongest_period(other.curve.values, _apparent_period(own_period / other.evaluation_interval))
        return match is not None and match.p_value <= _MAX_P_VALUE


def _apparent_period(period: float) -> float:
    """Return the apparent period, in evaluations, of a true `period`; aliasing lengthens periods below two evaluations."""
    frequency = 1 / period
    distance = abs(frequency - round(frequency))
    return 1 / distance if distance > 0 else math.inf


def find_curve_periods(study: Study, trials: list[Trial], curves: Sequence[tuple[str, CostCurveFunction]]) -> list[CurvePeriod]:
    """Return the strongest period of each evenly spaced curve, smallest p-value first.

    If the length of an epoch is known, half of the significance level is reserved for the period of an epoch. Trials with a
    cyclic learning rate are left out, because their curves follow the learning rate.
    """
    measured = [
        _measure_curve_period(trial, metric, costs(trial).finite)
        for trial in trials
        if not _has_cyclic_learning_rate(study, trial)
        for metric, costs in curves
    ]
    periods = [p for p in measured if p is not None]
    return sorted((replace(p, p_value=min(1.0, p.p_value * len(periods))) for p in periods), key=lambda p: p.p_value)


def _measure_curve_period(trial: Trial, metric: str, curve: Curve) -> CurvePeriod | None:
    interval, epoch = _evaluation_interval(curve), trial.fact("steps_per_epoch")
    strongest_period = find_strongest_period(curve.values) if interval else None
    if interval is None or strongest_period is None:
        return None
    epoch = epoch if epoch > 0 else math.nan
    epoch_period = find_strongest_period(curve.values, _apparent_period(epoch / interval)) if math.isfinite(epoch) else None
    best = epoch_period if epoch_period is not None and epoch_period.p_value <= strongest_period.p_value else strongest_period
    p = best.p_value if epoch_period is None else min(1.0, 2 * best.p_value)
    misses_epoch = epoch_period is None and math.isfinite(epoch)
    period = CurvePeriod(trial, metric, curve, interval, best, epoch, p, misses_epoch_period=misses_epoch)
    is_momentum = not period.periods_per_epoch and period.period_in_steps <= _longest_momentum_period(trial)
    return replace(period, p_value=1.0) if is_momentum else period


def _evaluation_interval(curve: Curve) -> int | None:
    if len(curve) < MIN_POINTS:
        return None
    gaps = np.diff(curve.steps)[1:]
    median_gap = int(np.median(gaps))
    return median_gap if float(np.mean(np.abs(gaps - median_gap) <= 0.05 * median_gap)) >= _MIN_EQUAL_INTERVAL_SHARE else None


def _longest_momentum_period(trial: Trial) -> float:
    """Return the longest period, in steps, at which momentum alone can make a loss oscillate: weights oscillate like a spring
    with a damping rate of (1 - momentum) / 2 per step."""
    values = [as_number(trial.facts.get(f"optimizer.{name}")) for name in ("momentum", "beta1")]
    for name, value in trial.params.items():
        words = words_of_name(name)
        if words[-1:] in (["momentum"], ["beta1"]):
            values.append(1 - as_number(value) if words[:2] == ["one", "minus"] else as_number(value))
    momentum = max((v for v in values if 0 < v < 1), default=_DEFAULT_MOMENTUM)
    return 4 * math.pi / (1 - momentum)


def _has_cyclic_learning_rate(study: Study, trial: Trial) -> bool:
    if '"cyclic"' in trial.facts.get("schedule", ""):
        return True
    rates = study.curve(trial, "learning_rate").finite.values
    if len(rates) < 3:
        return False
    directions = np.sign(np.diff(rates)[np.abs(np.diff(rates)) > 1e-3 * rates.max()])
    return int(np.sum((directions[1:] > 0) & (directions[:-1] < 0))) >= 2


def find_strongest_period(values: FloatArray, period: float | None = None) -> Periodicity | None:
    """Return the strongest period of a finite, evenly spaced series (n,); None if the series is constant or has fewer than 32
    points.

    `period` is a known period to test, in points; the result is None if this period is too short or too long for the series.
    The tapered periodogram is compared with a smooth spectrum, so that slow random drift is not mistaken for a period. The
    smooth spectrum is fitted to the logarithm of the periodogram; its terms are a constant, a power of the frequency for
    long-memory noise, and a few cosines. The power of a non-sinusoidal period is spread over its harmonics, so the powers of 1,
    2 and 4 harmonics are added.
    """
    y = _detrend_changes(values)
    if y is None:
        return None
    n = len(y)
    length = _ZERO_PADDING_FACTOR * n
    power = np.abs(np.fft.rfft(y * np.hanning(n + 2)[1:-1], length)) ** 2
    frequencies = np.arange(len(power)) / length
    ratio, freedom = _whiten_power_spectrum(power, frequencies)
    candidates = _candidate_frequencies(n, period)
    candidates = candidates[candidates < len(frequencies)]
    if not len(candidates):
        return None
    test_count = len(_HARMONIC_COUNTS) * len(candidates)
    best, best_index = math.inf, 0
    for count in _HARMONIC_COUNTS:
        index = np.arange(1, count + 1)[:, None] * candidates
        is_valid = index < len(ratio)
        summed_power = np.where(is_valid, ratio[np.minimum(index, len(ratio) - 1)], 0.0).sum(axis=0)
        harmonics = is_valid.sum(axis=0)
        p = stats.f.sf(summed_power / harmonics, 2 * harmonics, 2 * freedom)
        i = int(np.argmin(p))
        if p[i] < best:
            best, best_index = float(p[i]), int(candidates[i])
    strongest = length / max(best_index, 1)
    return Periodicity(strongest, min(1.0, test_count * best), _explained_variance_share(y, strongest))


def _detrend_changes(values: FloatArray) -> FloatArray | None:
    """Return detrended point-to-point changes after the first tenth of the series, in units of their local scatter; None for a
    constant series.

    Point-to-point changes are used, because a large fall of the curve would remain visible in residuals from a smooth curve.
    The scatter is local, because curves become less noisy as they flatten.
    """
    if len(values) < MIN_POINTS:
        return None
    y = np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    if y.min() > 0 and y[: len(y) // 10 + 1].max() > 10 * np.median(y):
        y = np.log(y)
    changes = np.diff(y[len(y) // 10 :])
    changes = changes / (float(np.abs(changes).max()) or 1.0)
    window = max(len(changes) // 4, 8) | 1
    changes = changes - uniform_filter1d(changes, window, mode="nearest")
    scatter = uniform_filter1d(np.abs(changes), window, mode="nearest") * math.sqrt(math.pi / 2)
    if not scatter.mean() > 1e-12:
        return None
    changes = np.clip(changes / np.maximum(scatter, 0.1 * scatter.mean()), -_MAX_SCALED_CHANGE, _MAX_SCALED_CHANGE)
    return np.asarray(changes - changes.mean(), dtype=np.float64)


def _candidate_frequencies(n: int, period: float | None) -> IntArray:
    first, last = _ZERO_PADDING_FACTOR * _MIN_PERIOD_COUNT, int(_ZERO_PADDING_FACTOR * n / _MIN_PERIOD_POINTS)
    if period is None:
        return np.arange(first, last + 1)
    # Include half a frequency step on either side, because the period may drift slightly.
    tested = _ZERO_PADDING_FACTOR * n / period
    indices = np.arange(math.floor(tested - _ZERO_PADDING_FACTOR / 2), math.ceil(tested + _ZERO_PADDING_FACTOR / 2) + 1)
    return indices[(indices >= first) & (indices <= last)] if first <= tested <= last else indices[:0]


def _whiten_power_spectrum(power: FloatArray, frequencies: FloatArray) -> tuple[FloatArray, float]:
    """Return (power divided by the smooth spectrum, half of the degrees of freedom of the smooth spectrum)."""
    independent = np.arange(_ZERO_PADDING_FACTOR, len(power), _ZERO_PADDING_FACTOR)
    w = 2 * math.pi * frequencies
    cosines = 2 + (len(independent) >= 40) + (len(independent) >= 80) + (len(independent) >= 160)
    long_memory = np.log(np.maximum(4 * np.sin(w / 2) ** 2, 1e-12))
    basis = np.stack([np.ones_like(w), long_memory, *(np.cos(k * w) for k in range(1, cosines + 1))], 1)
    # The log of an exponential variable has a mean lower by Euler's constant than the log of the variable's mean.
    log_power = np.log(np.maximum(power, 1e-300)) + np.euler_gamma
    smooth = basis @ np.linalg.lstsq(basis[independent], log_power[independent], rcond=None)[0]
    # A peak would raise the fitted spectrum, so cap the periodogram at the largest value expected by chance.
    cap = smooth[independent] + math.log(math.log(len(independent) / 0.05))
    smooth = basis @ np.linalg.lstsq(basis[independent], np.minimum(log_power[independent], cap), rcond=None)[0]
    freedom = max((len(independent) - basis.shape[1]) / 2, 2.0)
    return np.asarray(np.exp(np.minimum(log_power - np.euler_gamma - smooth, 700.0)), dtype=np.float64), freedom


def _explained_variance_share(y: FloatArray, period: float) -> float:
    t = np.arange(len(y)) / period
    waves = [f(2 * math.pi * h * t) for h in range(1, max(_HARMONIC_COUNTS) + 1) if 2 * h <= period for f in (np.sin, np.cos)]
    if not waves:
        return 0.0
    columns = np.stack(waves, 1)
    fitted_values = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    residual_sum, total_sum = float(np.sum((y - fitted_values) ** 2)), float(np.sum(y**2))
    return max(0.0, 1 - (residual_sum / max(len(y) - len(waves), 1)) / (total_sum / len(y)))
