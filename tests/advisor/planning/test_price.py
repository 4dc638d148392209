"""Sentences about the cost and the use of a study."""

from __future__ import annotations

from planning_studies import AIM

from advisor.model.spec import StudySpec
from advisor.planning import price


def test_the_cost_is_in_steps_if_they_are_known() -> None:
    spec = StudySpec(study="s", objective=AIM, trials=10, max_train_steps=2000)
    assert price.cost(spec) == "This costs 20,000 steps: 10 trials of 2,000 steps."
    seeds = spec.model_copy(update={"trials": 1, "seeds": 5})
    assert price.cost(seeds) == "This costs 10,000 steps: 5 runs of 2,000 steps."
    assert price.cost(spec.model_copy(update={"max_train_steps": None})) == "This costs 10 trials."


def test_the_power_counts_the_trials_so_far() -> None:
    assert price.power_of(12, 12, 1).startswith("With these 12 trials and the 12 so far, an effect of 3 standard")
    assert price.power_of(0, 12, 1).startswith("With these 12 trials, an effect of 4.9 standard deviations")
    assert price.power_of(0, 2, 1) == "More trials are needed to find any effect."
    assert "30 trials would have shown an effect of 2.6" in price.power_so_far(30, 1)
