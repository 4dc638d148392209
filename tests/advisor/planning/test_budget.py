"""The number of trials of the next study, its cost, and studies within a budget."""

from __future__ import annotations

import math

import numpy as np
import pytest
from history_studies import logged_at_0, round_of
from studies import make_study

from advisor.model.errors import AdvisorError
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.spec import Parameter
from advisor.planning import Plan, budget
from advisor.planning.base import initial_draft

RATES = [float(r) for r in np.geomspace(1e-4, 1e-2, 40)]


def planned(spec) -> Plan:
    return Plan(specs=(spec,), deferred=(), studies_to_size=frozenset({spec.study}))


def falling(rate: float) -> float:
    return 0.2 + 0.05 * math.log10(rate / 1e-3) ** 2 + 0.001 * math.sin(1e6 * rate)


@pytest.fixture(scope="module")
def searched():
    return round_of(RATES, [falling(r) for r in RATES], max_train_steps=1000)


def many(names: int = 6, count: int = 12):
    rng = np.random.default_rng(0)
    at = rng.uniform(size=(count, names))
    return make_study(
        [{"lr": float(10 ** (-4 + 2 * u[0])), **{f"x{i}": float(v) for i, v in enumerate(u[1:])}} for u in at],
        {"val/loss": [float(0.2 + ((u - 0.5) ** 2).sum()) for u in at]},
    )


def test_a_narrower_range_needs_fewer_trials(searched) -> None:
    spec = initial_draft(searched)
    narrow = spec.with_parameter("learning_rate", Parameter(low=5e-4, high=2e-3, scale="log"))
    (made,) = budget.with_trial_numbers(searched, planned(narrow))
    assert made.trials == TRIALS_FOR_RATE_ONLY
    wider = spec.with_parameter("learning_rate", Parameter(low=1e-3, high=1e-1, scale="log"))
    (made,) = budget.with_trial_numbers(searched, planned(wider))
    assert TRIALS_FOR_RATE_ONLY <= made.trials < 40


def test_never_fewer_trials_than_choices(searched) -> None:
    spec = initial_draft(searched).with_parameter("activation", Parameter(choices=tuple("abcdefgh")))
    (made,) = budget.with_trial_numbers(searched, planned(spec))
    assert (made.trials or 0) >= 8


def test_few_trials_of_many_hyperparameters_offer_fewer() -> None:
    study = many()
    (made,) = budget.with_trial_numbers(study, planned(initial_draft(study)))
    note = made.notes[0]
    assert "search only x4, x3 and lr, with" in note
    assert made.trials == 24


def test_a_budget_needs_known_lengths() -> None:
    study = logged_at_0()
    with pytest.raises(AdvisorError, match="no trial logged its number of steps"):
        budget.fit_into_budget(study, [initial_draft(study)], budget.CostLimit(100, "steps"))


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("40h", 144_000, "seconds"),
        ("90 min", 5400, "seconds"),
        ("2e6 steps", 2e6, "steps"),
        ("1,000 steps", 1000, "steps"),
        ("1,000,000.5 steps", 1_000_000.5, "steps"),
        ("1.5h", 5400, "seconds"),
        (".5h", 1800, "seconds"),
        ("10_000 steps", 10_000, "steps"),
    ],
)
def test_budgets_are_times_or_steps(text: str, amount: float, unit: str) -> None:
    assert budget.parse_budget(text) == budget.CostLimit(amount, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["40", "h", "-3h", "0 steps", "ten hours", "1e999 steps", "1,5h", "1,00,000 steps"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(AdvisorError, match="--budget"):
        budget.parse_budget(text)


def test_a_budget_leaves_out_hyperparameters_and_later_studies(searched) -> None:
    study = many(count=24)
    first = initial_draft(study).model_copy(update={"goal": "Search the right space: lr", "trials": 24, "max_train_steps": 100})
    later = first.model_copy(update={"goal": "Train for the right number of steps: max_train_steps"})
    (made,) = budget.fit_into_budget(study, [first, later], budget.CostLimit(1200, "steps"))
    assert made.trials == 12
    assert len(made.searched) < 6
    assert "lr" in made.searched
    notes = " ".join(made.notes)
    assert "The budget pays for 12 trials of the 24 that this study needs. The study therefore fixes" in notes
    assert "The budget of 1,200 steps leaves out later studies: Train for the right number of steps." in notes


def test_a_budget_for_no_trial_is_an_error(searched) -> None:
    with pytest.raises(AdvisorError, match="pays for no trial"):
        budget.fit_into_budget(searched, [initial_draft(searched)], budget.CostLimit(10, "steps"))


def test_stated_settings_keep_their_number(searched) -> None:
    spec = initial_draft(searched).model_copy(update={"settings": ({"learning_rate": 1e-3}, {"learning_rate": 2e-3})})
    (made,) = budget.with_trial_numbers(searched, planned(spec))
    assert made.trials == spec.trials
