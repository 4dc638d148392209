"""Noise of curves and rises over their best level: unbiased on known noise, seldom fooled by chance, blind to units."""

import numpy as np
import pytest
from scipy import signal

from advisor.stats.curve import (
    change_since,
    first_diverged_index,
    gain_share_after,
    late_residual_scatter,
    noise_sd,
    rise_at_end,
    rise_at_point,
    smooth_savgol,
)


def falling(n):
    return 2 * np.exp(-6 * np.arange(n) / n)


def autocorrelated(rng, n, phi):
    return signal.lfilter([1], [1, -phi], rng.standard_normal(n + 50))[50:]


def test_noise_is_that_of_the_points_and_not_of_the_trend():
    rng = np.random.default_rng(0)
    found = [noise_sd(falling(60) + 0.1 * rng.standard_normal(60)) for _ in range(200)]
    assert np.mean(found) == pytest.approx(0.1, rel=0.1)
    assert np.isnan(noise_sd(np.arange(4.0)))


@pytest.mark.parametrize("n", [8, 20, 51, 200])
@pytest.mark.parametrize("phi", [0.0, 0.3])
def test_chance_seldom_looks_like_a_rise(n, phi):
    rng = np.random.default_rng(1)
    curves = [falling(n) + 0.1 * autocorrelated(rng, n, phi) for _ in range(300)]
    assert np.mean([rise_at_end(c).p_value <= 0.05 for c in curves]) <= 0.05
    assert np.mean([rise_at_point(c, n - 1).p_value <= 0.05 for c in curves]) <= 0.05


@pytest.mark.parametrize("n", [12, 51, 200])
def test_a_rise_is_seen_and_measured(n):
    rng = np.random.default_rng(2)
    t = np.linspace(0, 1, n)
    curve = 1 + 4 * (t - 0.4) ** 2 + 0.005 * rng.standard_normal(n)
    rise = rise_at_end(curve)
    assert rise.p_value < 0.01
    assert rise.height == pytest.approx(4 * 0.6**2, rel=0.2)
    assert abs(t[rise.best_index] - 0.4) < 0.15


def test_units_do_not_matter():
    curve = 1 + (np.linspace(0, 1, 40) - 0.4) ** 2 + 0.01 * np.random.default_rng(3).standard_normal(40)
    plain, scaled = rise_at_end(curve), rise_at_end(1000 * curve + 7)
    assert scaled.p_value == pytest.approx(plain.p_value)
    assert scaled.share == pytest.approx(plain.share)


def test_a_level_that_falls_and_one_that_stays():
    rng = np.random.default_rng(4)
    down = change_since(np.linspace(1, 0, 50) + 0.01 * rng.standard_normal(50), 10)
    assert down.fall_p_value < 0.001 < 0.9 < down.rise_p_value
    flat = change_since(0.01 * rng.standard_normal(50), 10)
    assert min(flat.fall_p_value, flat.rise_p_value) > 0.01


@pytest.mark.parametrize(
    "values", [[], [1.0] * 5, [1.0] * 40, [1e308, -1e308] * 10, [0.0] * 39 + [1.0], list(range(20))], ids=len
)
def test_nothing_odd_breaks_it(values):
    curve = np.array(values, dtype=float)
    for rise in (rise_at_end(curve), rise_at_point(curve, len(curve) - 1) if values else None):
        assert (rise is None) == (len(curve) < 6) or not values
        if rise is not None:
            assert 0 <= rise.p_value <= 1


@pytest.mark.parametrize("lag", [0.0, 0.5, 0.8])
def test_the_scatter_of_noise_that_wanders_is_not_what_a_cubic_leaves_of_it(lag):
    rng, at = np.random.default_rng(0), np.arange(1, 61) / 60
    found = [late_residual_scatter(at, autocorrelated(rng, 60, lag))[0] ** 2 * (1 - lag**2) for _ in range(200)]
    assert 0.8 < np.mean(found) < 1.35


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1 / 3])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_rounding_is_no_noise_by_which_a_coarse_metric_rises(unit: float, kind: type) -> None:
    counted = np.array([88, 87, 86, 86, 86, 86, 86, 86, 84, 86])
    whole, rise = rise_at_end(counted.astype(np.float64)), rise_at_end((counted * unit).astype(kind).astype(np.float64))
    assert whole is not None
    assert rise is not None
    assert rise.p_value == pytest.approx(whole.p_value, rel=1e-3)
    assert rise.p_value > 0.05


@pytest.mark.parametrize(("n", "window"), [(9, 9), (20, 9), (50, 5), (31, 15)])
def test_smoothing_equals_scipys_savitzky_golay_filter(n, window):
    y = np.random.default_rng(5).normal(size=n).cumsum()
    np.testing.assert_allclose(smooth_savgol(y, window), signal.savgol_filter(y, window, 2), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "index"), [([], None), ([1, 2], None), ([1, np.nan, 2], None), ([1, 2, np.inf, np.nan], 2), ([np.nan], 0)]
)
def test_divergence(values, index):
    assert first_diverged_index(np.array(values, dtype=float)) == index


def test_gain_after():
    costs = np.array([10.0, 6.0, 4.0, 2.0])
    assert gain_share_after(np.array([1, 2, 3, 4]), costs, after=3) == pytest.approx(0.25)
    assert gain_share_after(np.array([1, 2]), np.array([1.0, 2.0]), after=1) == 0.0
    with np.errstate(all="raise"):
        assert 0 < gain_share_after(np.arange(2), np.array([1.7e308, -1.7e308]), after=0) <= 1
