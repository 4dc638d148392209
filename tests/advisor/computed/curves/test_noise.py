"""Noise of results."""

import numpy as np
import pytest
from studies import make_study

from advisor.computed.curves.noise import noise_between_evaluations, redraw_ranking, split_around_best


def test_only_trials_as_good_as_the_best_one_show_its_noise() -> None:
    rng = np.random.default_rng(0)
    fall = np.exp(-np.arange(40) / 5)

    def noise_of(level: float) -> float:
        curves = [1 + fall + 0.001 * rng.standard_normal(40), level + fall + 0.1 * rng.standard_normal(40)]
        return noise_between_evaluations(make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": curves}))

    assert 0 < noise_of(1.4) < 0.002
    assert noise_of(1.15) > 0.01


def trial(rng, level, noise, n=60):
    return level + np.exp(-8 * np.arange(n) / n) + noise * rng.standard_normal(n)


def test_noise_around_the_best_step():
    rng = np.random.default_rng(0)
    found = [split_around_best(trial(rng, 1.0, 0.1)).noise_sd for _ in range(200)]
    assert np.median(found) == pytest.approx(0.1, rel=0.15)


def test_a_bend_is_no_noise():
    assert split_around_best(np.exp(-np.arange(30) / 5)).noise_sd == 0
    assert split_around_best(np.arange(9.0)) is None


def test_equal_trials_are_ranked_by_noise():
    rng = np.random.default_rng(1)
    rankings = []
    for _ in range(40):
        curves = sorted((trial(rng, 1.0, 0.05) for _ in range(5)), key=np.min)
        rankings.append(redraw_ranking([split_around_best(c) for c in curves]))
    assert np.median([r.reliability for r in rankings]) < 0.5
    assert np.median([r.best_unchanged_share for r in rankings]) < 0.6


def test_distinct_trials_keep_their_order():
    rng = np.random.default_rng(2)
    curves = [trial(rng, 1 + 0.3 * i, 0.05) for i in range(5)]
    ranking = redraw_ranking([split_around_best(c) for c in curves])
    assert ranking.best_unchanged_share == 1
    assert ranking.reliability > 0.95
