"""Whether curves fall like curves at a constant learning rate."""

import numpy as np
import pytest

from advisor.stats import slowing

STEPS = np.arange(1, 101)
T = STEPS / 100
POWER = (1 + 20 * T) ** -0.7
NOISE = 0.002


def fall(curve, trials=4, noise=NOISE, seed=0):
    rng = np.random.default_rng(seed)
    return slowing.pool_fall_rates([(STEPS, curve + noise * rng.normal(size=100)) for _ in range(trials)])


@pytest.mark.parametrize("curve", [POWER, np.exp(-3 * T), 0.5 * np.exp(-40 * T) + 0.5 * np.exp(-T)])
def test_curves_at_a_constant_rate_slow_down_gradually(curve):
    assert fall(curve).longer_training_helps(0.01)
    assert not fall(curve).contradicts_constant_rate


def test_a_linear_decay_keeps_the_pace_to_the_end():
    assert not fall(np.exp(-40 * T) + 0.3 * (1 - T)).longer_training_helps(0.01)


def test_a_nearly_straight_curve_gains_under_any_schedule_if_its_fall_slows_beyond_noise():
    assert fall(np.exp(-0.7 * T)).longer_training_helps(0.01)
    assert not fall(np.exp(-0.7 * T), trials=1, noise=0.02).longer_training_helps(0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_decay_that_ends_the_fall_shows_no_gain(seed):
    cosine = 0.5 * np.exp(-12 * (T + np.sin(np.pi * T) / np.pi) / 2) + 0.1 * (1 + np.cos(np.pi * T)) / 2
    assert not fall(cosine, noise=0.005, seed=seed).longer_training_helps(0.01)


def test_a_long_warmup_that_raises_the_loss_is_not_judged():
    rise = 0.1 * np.minimum(T / 0.1, 1) * np.exp(-np.maximum(T - 0.15, 0) / 0.02)
    assert not fall(np.exp(-2 * T) + rise - 0.2 * np.minimum(T, 0.1)).contradicts_constant_rate


@pytest.mark.parametrize("drop", [0.15 * (1 + np.cos(np.pi * T)), 0.3 * (T < 0.5), 0.3 * np.minimum(1, (1 - T) / 0.2)], ids=str)
def test_a_decay_breaks_the_fall(drop):
    assert fall(0.3 * np.exp(-40 * T) + drop).contradicts_constant_rate


def test_curves_at_a_constant_rate_are_rarely_called_broken():
    curves = [POWER, np.exp(-3 * T), np.exp(-40 * T)]
    assert sum(fall(curves[seed % 3], noise=0.01, seed=seed).contradicts_constant_rate for seed in range(150)) <= 15


def test_trials_are_pooled():
    faint = np.exp(-40 * T) + 0.05 * (T < 0.5)
    assert not fall(faint, trials=1, noise=0.06).contradicts_constant_rate
    assert fall(faint, trials=60, noise=0.06).contradicts_constant_rate


def test_short_or_flat_curves_cannot_be_judged():
    assert slowing.pool_fall_rates([(STEPS[:4], POWER[:4]), (STEPS, np.ones(100))]) is None


def test_curves_without_noise_can_be_judged():
    assert fall(np.exp(-2 * T), noise=0.0).longer_training_helps(0.01)
    assert not fall(np.where(T <= 0.01, 1.0, 0.5), noise=0.0).longer_training_helps(0.01)
