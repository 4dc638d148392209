"""What the study would find if it ran again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from studies import make_study

from advisor.computed.space import rerun


def study(count: int, seed: int, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    rates, rest = rng.random((2, count))
    costs = 0.2 + (rates - 0.4) ** 2 + 0.3 * (rest - 0.5) ** 2 + 0.01 * rng.standard_normal(count)
    params = [{"lr": 10 ** (-4 + 3 * a), "dropout": 0.5 * b} for a, b in zip(rates.tolist(), rest.tolist(), strict=True)]
    return make_study(params, {"val/loss": costs.tolist()}, **more)


def test_most_other_studies_end_within_the_interval() -> None:
    interval = rerun.best_result_interval(study(24, 0))
    assert interval is not None
    bests = np.array([study(24, seed).costs.min() for seed in range(1, 41)])
    assert np.mean((bests >= interval[0]) & (bests <= interval[1])) >= 0.6


def test_a_loss_does_not_fall_below_zero() -> None:
    rng = np.random.default_rng(0)
    params = [{"lr": 0.01 * (1 + i), "momentum": float(u)} for i, u in enumerate(rng.random(12))]
    interval = rerun.best_result_interval(make_study(params, {"val/loss": (1e-3 + rng.random(12)).tolist()}))
    assert interval is not None
    assert 0 <= interval[0] < interval[1]


@pytest.mark.parametrize("count", [4, 7])
def test_few_settings_tell_nothing(count: int) -> None:
    assert rerun.best_result_interval(study(count, 0)) is None


def test_a_grid_would_be_the_same_again() -> None:
    params = [{"lr": 0.1 * (i % 3 + 1), "dropout": 0.1 * (i // 3)} for i in range(9)]
    assert rerun.best_result_interval(make_study(params, {"val/loss": np.linspace(1, 2, 9).tolist()})) is None


def test_a_response_that_the_best_result_contradicts_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = study(24, 0)
    drawn = rerun.further_results(tried)
    better = replace(drawn, best_results=np.full_like(drawn.best_results, tried.costs.min() - 0.01))
    monkeypatch.setattr(rerun, "further_results", lambda _: better)
    assert rerun.best_result_interval(tried) is None
