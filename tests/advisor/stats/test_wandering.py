"""Whether the early part of a curve is told from what comes after it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from advisor.stats.wandering import p_value_of_unusual_start


@pytest.mark.parametrize("lag", [0.0, 0.5, 0.9])
def test_noise_that_wanders_seldom_starts_unlike_itself(lag: float) -> None:
    rng = np.random.default_rng(0)
    chances = []
    for _ in range(300):
        shocks = rng.standard_normal(500)
        chances.append(p_value_of_unusual_start(lfilter([1.0], [1.0, -lag], shocks)[100:], 40))
    assert np.mean(np.array(chances) <= 0.05) <= 0.08


def test_a_start_that_blew_up_is_none_of_it_whether_it_recovered_or_not() -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal(60)
    noise[0] = -2.0
    assert p_value_of_unusual_start(noise, 6) < 1e-6
    noise[:12] = np.array([0.0, *np.geomspace(4, 0.2, 11)])
    assert p_value_of_unusual_start(noise, 6) < 1e-6


def test_a_curve_that_falls_and_one_that_is_short_are_not_asked() -> None:
    assert p_value_of_unusual_start(np.linspace(2, 0, 100), 10) == 0
    assert p_value_of_unusual_start(np.zeros(12), 2) == 0
    assert p_value_of_unusual_start(np.zeros(100), 10) == 0


def test_strongly_autocorrelated_noise_rises_at_the_start_of_a_curve_that_falls() -> None:
    t = np.arange(400)
    rng = np.random.default_rng(4)
    calm = 0
    for _ in range(50):
        noise = np.zeros(400)
        for i in range(1, 400):
            noise[i] = 0.95 * noise[i - 1] + 0.3 * rng.normal()
        calm += p_value_of_unusual_start(10 - 6 * t / 400 + noise, 40) > 0.01
    assert calm >= 30
    assert p_value_of_unusual_start(10 - 6 * t / 400 + rng.normal(size=400), 40) == 0
