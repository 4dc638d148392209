"""Power of the test that a hyperparameter has an effect."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from advisor.stats import power


def test_more_trials_and_fewer_hyperparameters_find_smaller_effects() -> None:
    assert power.detectable_effect(12, 1) > power.detectable_effect(24, 1) > power.detectable_effect(48, 1)
    assert power.detectable_effect(24, 5) > power.detectable_effect(24, 1)
    assert math.isinf(power.detectable_effect(4, 1))


def test_the_number_of_trials_is_the_smallest_that_finds_the_effect() -> None:
    for axes in (1, 3):
        needed = power.trials_needed(3.0, axes)
        assert power.detectable_effect(needed, axes) <= 3.0 < power.detectable_effect(needed - 1, axes)


def test_the_effect_is_found_with_the_stated_probability() -> None:
    rng, trials = np.random.default_rng(0), 20
    effect, found = power.detectable_effect(trials, 1), 0
    for _ in range(400):
        u = rng.random(trials)
        y = effect * u + rng.normal(size=trials)
        design = np.stack([np.ones(trials), u, u**2], axis=1)
        left = float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))
        ratio = (float(np.sum((y - y.mean()) ** 2)) - left) / 2 / (left / (trials - 3))
        found += stats.f.sf(ratio, 2, trials - 3) <= power.SIGNIFICANCE_LEVEL
    assert 0.73 < found / 400 < 0.87
