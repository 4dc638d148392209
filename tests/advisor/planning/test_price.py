"""Sentences about the cost and the use of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from history_studies import logged_at_0, round_of

from advisor.model.study import Study
from advisor.planning import price
from advisor.planning.base import base


@pytest.fixture(scope="module")
def study() -> Study:
    return round_of([1e-4, 1e-3, 1e-2], [0.3, 0.2, 0.4], max_train_steps=1000)


def test_the_cost_is_in_steps_and_hours(study: Study) -> None:
    spec = study.spec.model_copy(update={"trials": 20})
    assert price.cost(study, spec).sentence.startswith("This costs 20,000 steps: 20 runs of 1,000 steps, about ")
    seeds = spec.model_copy(update={"trials": 1, "seeds": 5, "max_train_steps": 1})
    assert price.cost(study, seeds).sentence.startswith("This costs 5 steps: 5 runs of 1 step, about ")


@pytest.mark.parametrize("unit", ["epoch", "second"])
def test_the_cost_has_the_unit_of_the_study(study: Study, unit: Any) -> None:
    costs = price.cost(replace(study, unit=unit), study.spec)
    assert costs.sentence.startswith(f"This costs 3,000 {unit}s: 3 runs of 1,000 {unit}s")


def test_results_at_step_0_tell_no_length() -> None:
    study = logged_at_0()
    assert price.cost(study, base(study)).sentence == "This costs 6 runs."


def test_the_cost_is_the_first_note(study: Study) -> None:
    spec = study.spec.model_copy(update={"notes": ("Then this.",)})
    assert price.priced(study, spec).notes == (price.cost(study, spec).sentence, "Then this.")


def test_the_power_counts_the_trials_so_far() -> None:
    assert price.power_of(12, 12, 1).startswith("With these 12 trials and the 12 so far, an effect of 3 standard")
    assert price.power_of(0, 12, 1).startswith("With these 12 trials, an effect of 4.9 standard deviations")
    assert price.power_of(0, 2, 1) == "More trials are needed to find any effect."
    assert "30 trials would have shown an effect of 2.6" in price.power_so_far(30, 1)
