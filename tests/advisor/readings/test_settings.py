"""The settings that a study tried."""

from __future__ import annotations

import pytest
from studies import make_study

from advisor.readings import settings


def test_repeats_of_one_setting_are_one_setting() -> None:
    params = [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]
    tried = settings.read(make_study(params, {"val/loss": [[3.0], [1.0], [2.0], [4.0]]}))
    assert len(tried) == 2
    assert tried.costs.tolist() == [2, 4]


@pytest.mark.parametrize("name", ["max_train_steps", "epochs", "num_epochs", "training_iterations", "trainSteps"])
def test_budgets_are_known_by_name(name: str) -> None:
    assert settings.is_budget(name)


@pytest.mark.parametrize("name", ["warmup_steps", "decay_epochs", "learning_rate", "eval_steps", "accumulation_steps"])
def test_other_counts_are_no_budgets(name: str) -> None:
    assert not settings.is_budget(name)
