"""Jumps and early rises of noisy series."""

import numpy as np
import pytest
from scipy.signal import lfilter

from advisor.stats import jumps

RNG = np.random.default_rng(7)
NOISES = {
    "normal": lambda n: RNG.normal(size=n),
    "heavy": lambda n: RNG.standard_t(3, size=n),
    "skewed": lambda n: RNG.gamma(4, size=n) / 2 - 2,
}


def falling(n, noise, kind="normal"):
    return 1 + 2 * np.exp(-5 * np.linspace(0, 1, n)) + noise * NOISES[kind](n)


def significant(results):
    """Return how many of the jumps or rises are significant and material."""
    return sum(r is not None and r.p_value <= 0.05 and r.share >= 0.1 for r in results)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("n", [30, 120, 600])
def test_falling_curves_rarely_jump(kind, n):
    assert significant(jumps.largest_jump(falling(n, 0.2, kind), n // 10) for _ in range(60)) <= 6


@pytest.mark.parametrize(("n", "points"), [(60, 4), (600, 2), (600, 100)])
def test_a_jump_is_found_where_it_is(n, points):
    loss = falling(n, 0.03)
    loss[n // 2 : n // 2 + points] += 1.5
    found = jumps.largest_jump(loss, n // 10)
    assert found.p_value < 0.01
    assert abs(found.index - n // 2) <= 1
    assert found.level_after - found.level_before == pytest.approx(1.5, abs=0.25)
    assert found.share == pytest.approx(0.75, abs=0.2)


def test_one_odd_point_is_no_jump():
    loss = falling(300, 0.03)
    loss[150] += 3
    assert jumps.largest_jump(loss, 30).p_value > 0.05


def test_a_jump_where_the_learning_rate_is_raised_is_passed_over():
    loss = falling(300, 0.03)
    loss[150:] += 1.5
    assert jumps.largest_jump(loss, 30, np.full(300, 0.1)).p_value < 1e-6
    found = jumps.largest_jump(loss, 30, np.where(np.arange(300) < 150, 0.01, 0.1))
    assert found is None or found.p_value > 0.05


def test_a_loss_that_never_fell_has_not_jumped():
    loss = 2 + 0.1 * RNG.normal(size=300)
    loss[150:] += 5
    assert jumps.largest_jump(loss, 30) is None


def test_a_loss_that_fell_tenfold_is_read_on_a_log_scale():
    loss = 100 * np.exp(-8 * np.linspace(0, 1, 400)) * np.exp(0.03 * RNG.normal(size=400))
    loss[300:320] *= 5
    found = jumps.largest_jump(loss, 40)
    assert found.is_log
    assert found.p_value < 0.01
    assert found.level_after / found.level_before == pytest.approx(5, rel=0.3)


def test_units_do_not_matter():
    loss = falling(300, 0.03)
    loss[150:160] += 1
    one, other = jumps.largest_jump(loss, 30), jumps.largest_jump(1000 * loss, 30)
    assert one.p_value == pytest.approx(other.p_value)
    assert one.share == pytest.approx(other.share)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("n", "early", "width"), [(50, 5, 1), (400, 60, 10)])
def test_starts_that_do_not_rise(kind, n, early, width):
    for level in (falling, lambda n, s, k: 2.5 + s * NOISES[k](n)):
        assert significant(jumps.early_rise(level(n, 0.1, kind), early, width) for _ in range(60)) <= 8


def test_a_rise_at_the_start():
    loss = falling(200, 0.02)
    loss[1:15] += 4
    found = jumps.early_rise(loss, 20, 3)
    assert found.p_value < 1e-4
    assert 1 <= found.index < 15
    assert found.highest_level > 5 > found.noise_limit > found.first_value
    assert found.share > 1


def test_an_overshoot_shorter_than_asked_for_is_none():
    loss = falling(500, 0.02)
    loss[1:3] *= 20
    assert jumps.early_rise(loss, 50, 10).p_value > 0.05


def test_a_noisy_unstable_start_is_seen_against_the_quiet_rest():
    loss = np.concatenate([[0.695], 0.9 + 0.15 * RNG.normal(size=8), 0.69 + 0.005 * RNG.normal(size=42)])
    assert jumps.early_rise(loss, 6, 1).p_value < 0.05


@pytest.mark.parametrize("values", [np.ones(50), np.zeros(50), np.tile([1e308, -1e308], 25), np.tile([1e-308, 1e308], 25)])
def test_odd_series_raise_nothing(values):
    with np.errstate(all="raise", under="ignore"):
        jumps.largest_jump(values, 5)
        jumps.early_rise(values, 10, 2)
        jumps.largest_jump(values[:3], 0)
        jumps.early_rise(values[:2], 1, 1)
        jumps.find_collapse(values, 5)
        jumps.steep_rises(values, 6)


@pytest.mark.parametrize("top", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("at", [15, 30, 45])
def test_a_loss_that_blew_up_and_stays_is_a_jump_whenever_it_did(top: float, at: int) -> None:
    rng, t = np.random.default_rng(0), np.arange(1, 61)
    falling = 0.3 + 2 * np.exp(-t / 8) + 0.01 * rng.standard_normal(60)
    found = jumps.largest_jump(np.where(t > at, top * (1 + 0.1 * rng.standard_normal(60)), falling), 6)
    assert found is not None
    assert found.p_value < 0.001
    assert abs(found.index - at) <= 1
    assert found.share > 1


def collapsed(at, spread):
    loss = falling(60, 0.02)
    loss[at:] = 3 * np.exp(spread * RNG.normal(size=60 - at))
    return loss


@pytest.mark.parametrize("at", [28, 35, 45])
def test_a_collapse_does_not_hide_in_its_own_noise(at: int) -> None:
    found = [jumps.find_collapse(collapsed(at, 0.3), 6) for _ in range(20)]
    assert sum(j is not None and j.p_value <= 0.05 and j.share > 0.5 for j in found) >= 16
    assert all(abs(j.index - at) <= 4 for j in found if j is not None and j.p_value <= 0.05)


@pytest.mark.parametrize("kind", NOISES)
def test_healthy_curves_do_not_collapse(kind: str) -> None:
    found = [jumps.find_collapse(falling(60, 0.1, kind), 6) for _ in range(200)]
    assert sum(j is not None and j.p_value <= 0.05 for j in found) <= 4


def test_a_curve_that_recovers_did_not_collapse() -> None:
    loss = falling(60, 0.02)
    loss[30:40] += 2
    assert jumps.find_collapse(loss, 6) is None


def test_an_explained_jump_is_left_out_and_the_next_one_counts() -> None:
    loss = falling(300, 0.02)
    loss[100:] += 1
    loss[200:] += 0.6
    first = jumps.largest_jump(loss, 30)
    assert first is not None
    assert abs(first.index - 100) <= 2
    second = jumps.largest_jump(loss, 30, explained=[first])
    assert second is not None
    assert abs(second.index - 200) <= 2
    third = jumps.largest_jump(loss, 30, explained=[first, second])
    assert third is None or third.p_value > 0.05


def test_steep_rises_lie_around_a_jump() -> None:
    loss = falling(300, 0.02)
    loss[100:] += 1
    steep = jumps.steep_rises(loss, 6)
    assert steep[100]
    assert steep.mean() < 0.2
    assert not jumps.steep_rises(loss[:10], 6).any()


@pytest.mark.parametrize("lag", [0.0, 0.5, 0.9])
def test_noise_that_wanders_seldom_starts_unlike_itself(lag):
    rng = np.random.default_rng(0)
    chances = []
    for _ in range(300):
        shocks = rng.standard_normal(500)
        chances.append(jumps.p_value_of_unusual_start(lfilter([1.0], [1.0, -lag], shocks)[100:], 40))
    assert np.mean(np.array(chances) <= 0.05) <= 0.08


def test_a_start_that_blew_up_is_none_of_it_whether_it_recovered_or_not():
    noise = 0.05 * np.random.default_rng(0).standard_normal(60)
    noise[0] = -2.0
    assert jumps.p_value_of_unusual_start(noise, 6) < 1e-6
    noise[:12] = np.array([0.0, *np.geomspace(4, 0.2, 11)])
    assert jumps.p_value_of_unusual_start(noise, 6) < 1e-6


def test_a_curve_that_falls_and_one_that_is_short_are_not_asked():
    assert jumps.p_value_of_unusual_start(np.linspace(2, 0, 100), 10) == 0
    assert jumps.p_value_of_unusual_start(np.zeros(12), 2) == 0
    assert jumps.p_value_of_unusual_start(np.zeros(100), 10) == 0


def test_strongly_autocorrelated_noise_rises_at_the_start_of_a_curve_that_falls():
    t = np.arange(400)
    rng = np.random.default_rng(4)
    calm = 0
    for _ in range(50):
        noise = np.zeros(400)
        for i in range(1, 400):
            noise[i] = 0.95 * noise[i - 1] + 0.3 * rng.normal()
        calm += jumps.p_value_of_unusual_start(10 - 6 * t / 400 + noise, 40) > 0.01
    assert calm >= 30
    assert jumps.p_value_of_unusual_start(10 - 6 * t / 400 + rng.normal(size=400), 40) == 0
