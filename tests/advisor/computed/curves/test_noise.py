"""Noise of results."""

from __future__ import annotations

import numpy as np
from studies import make_study

from advisor.computed.curves.noise import noise_between_evaluations


def test_only_trials_as_good_as_the_best_one_show_its_noise() -> None:
    rng = np.random.default_rng(0)
    fall = np.exp(-np.arange(40) / 5)

    def noise_of(level: float) -> float:
        curves = [1 + fall + 0.001 * rng.standard_normal(40), level + fall + 0.1 * rng.standard_normal(40)]
        return noise_between_evaluations(make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": curves}))

    assert 0 < noise_of(1.4) < 0.002
    assert noise_of(1.15) > 0.01
