"""Sentences about the cost and the use of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from history_studies import logged_at_0, round_of
from studies import make_study

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


@pytest.mark.parametrize(("gap", "seconds"), [(2.0, 24 + 2), (0.0, 24), (-5.0, 24), (50.0, 24 + 50), (90.0, 24)])
def test_the_start_of_a_process_and_the_pause_after_it_count(gap: float, seconds: float) -> None:
    """Runs of 10 steps of 2 s, the first evaluation at step 5 after 14 s: 4 s pass before the first step."""
    study = make_study([{"lr": rate} for rate in (0.1, 0.2, 0.3)], {"val/loss": [[2.0, 1.0]] * 3})
    times = np.tile([14.0, 24.0], 3)
    blocks = {n: replace(b, steps=np.tile([5.0, 10.0], 3), times=times) for n, b in study.metrics.items()}
    trials = tuple(replace(t, started=1000 + (24 + gap) * t.index) for t in study.trials)
    spec = study.spec.model_copy(update={"max_train_steps": 10})
    assert price.cost(replace(study, metrics=blocks, trials=trials), spec).seconds == pytest.approx(seconds)


def test_the_epochs_of_a_language_model_are_named(study: Study) -> None:
    trials = tuple(replace(t, facts={**t.facts, "steps_per_epoch": "400"}) for t in study.trials)
    of = replace(study, trials=trials, kind="language-model")
    assert ": 3 runs of 1,000 steps (2.5 epochs), about " in price.cost(of, of.spec).sentence
    assert "epochs" not in price.cost(replace(study, trials=trials), study.spec).sentence


def test_results_at_step_0_tell_no_length() -> None:
    study = logged_at_0()
    assert price.cost(study, base(study)).sentence == "This costs 6 runs."


def test_the_cost_is_the_first_note(study: Study) -> None:
    spec = study.spec.model_copy(update={"notes": ("Then this.",)})
    assert price.with_cost_note(study, spec).notes == (price.cost(study, spec).sentence, "Then this.")


def test_the_power_counts_the_trials_so_far(study: Study) -> None:
    assert price.power_sentence(study, 12, 12, 1).startswith("These 12 trials and the 12 so far find that a hyperparameter")
    assert price.power_sentence(study, 0, 12, 1).startswith("These 12 trials find that a hyperparameter")
    assert price.power_sentence(study, 0, 2, 1) == "More trials are needed to find any effect."
    assert "30 trials would have shown a difference of 2.6 times" in price.past_power_sentence(study, 30, 1)


def test_repeats_state_the_power_in_the_unit_of_the_objective() -> None:
    repeated = make_study([{"lr": 0.1}] * 3, {"val/loss": [[1.0], [1.1], [1.2]]}, seeds=[0, 1, 2])
    assert "differ by 0.3 in val/loss (3 times the standard deviation" in price.power_sentence(repeated, 12, 12, 1)
