"""The settings that a study tried."""

from __future__ import annotations

from typing import Any

import pytest
from studies import make_study

from advisor.computed.space import settings
from advisor.model.finding import MissingData


def test_repeats_of_one_setting_are_one_setting() -> None:
    params = [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]
    tried = settings.read(make_study(params, {"val/loss": [[3.0], [1.0], [2.0], [4.0]]}))
    assert len(tried) == 2
    assert tried.costs.tolist() == [2, 4]


def _pruned(count: int) -> Any:
    """Return 10 trials, of which the first `count` were pruned at a low cost."""
    params = [{"lr": 0.1 * (i + 1)} for i in range(10)]
    costs = [[0.0 if i < count else 1.0 + i] for i in range(10)]
    return make_study(params, {"val/loss": costs}, status=["pruned"] * count + ["complete"] * (10 - count))


def test_pruned_trials_are_no_settings_with_a_result() -> None:
    made = _pruned(3)
    assert settings.read(made).costs.tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert [t.index for t in made.ranked()[:2]] == [3, 4]


def test_early_results_must_not_select_the_trials() -> None:
    settings.require_unpruned(_pruned(2))
    with pytest.raises(MissingData, match="3 of 10 trials were pruned"):
        settings.require_unpruned(_pruned(3))
