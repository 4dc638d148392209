"""Sentences about the cost and the use of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from history_studies import logged_at_0, round_of
from planning_studies import AIM, QUIET, found, only_study
from studies import make_study

from advisor.model.change import SetField
from advisor.model.spec import Parameter, Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning import price
from advisor.planning.base import initial_draft
from advisor.planning.goals import goal_after_manual_fix
from advisor.stats import best_of


@pytest.fixture(scope="module")
def study() -> Study:
    return round_of([1e-4, 1e-3, 1e-2], [0.3, 0.2, 0.4], max_train_steps=1000)


def test_the_cost_is_in_steps_and_hours(study: Study) -> None:
    spec = study.spec.model_copy(update={"trials": 20})
    assert price.estimate_cost(study, spec).sentence.startswith("This costs 20,000 steps: 20 runs of 1,000 steps, about ")
    seeds = spec.model_copy(update={"trials": 1, "seeds": 5, "max_train_steps": 1})
    assert price.estimate_cost(study, seeds).sentence.startswith("This costs 5 steps: 5 runs of 1 step, about ")


@pytest.mark.parametrize("unit", ["epoch", "second"])
def test_the_cost_has_the_unit_of_the_study(study: Study, unit: Any) -> None:
    costs = price.estimate_cost(replace(study, unit=unit), study.spec)
    assert costs.sentence.startswith(f"This costs 3,000 {unit}s: 3 runs of 1,000 {unit}s")


@pytest.mark.parametrize(("gap", "seconds"), [(2.0, 24 + 2), (0.0, 24), (-5.0, 24), (50.0, 24 + 50), (90.0, 24)])
def test_the_start_of_a_process_and_the_pause_after_it_count(gap: float, seconds: float) -> None:
    """Runs of 10 steps of 2 s, the first evaluation at step 5 after 14 s: 4 s pass before the first step."""
    study = make_study([{"lr": rate} for rate in (0.1, 0.2, 0.3)], {"val/loss": [[2.0, 1.0]] * 3})
    times = np.tile([14.0, 24.0], 3)
    blocks = {n: replace(b, steps=np.tile([5.0, 10.0], 3), times=times) for n, b in study.metrics.items()}
    trials = tuple(replace(t, started=1000 + (24 + gap) * t.index) for t in study.trials)
    spec = study.spec.model_copy(update={"max_train_steps": 10})
    assert price.estimate_cost(replace(study, metrics=blocks, trials=trials), spec).seconds == pytest.approx(seconds)


def test_the_epochs_of_a_language_model_are_named(study: Study) -> None:
    trials = tuple(replace(t, facts={**t.facts, "steps_per_epoch": "400"}) for t in study.trials)
    of = replace(study, trials=trials, kind="language-model")
    assert ": 3 runs of 1,000 steps (2.5 epochs), about " in price.estimate_cost(of, of.spec).sentence
    assert "epochs" not in price.estimate_cost(replace(study, trials=trials), study.spec).sentence


def test_results_at_step_0_tell_no_length() -> None:
    study = logged_at_0()
    assert price.estimate_cost(study, initial_draft(study)).sentence == "This costs 6 runs."


def test_the_cost_is_the_first_note(study: Study) -> None:
    spec = study.spec.model_copy(update={"notes": ("Then this.",)})
    assert price.with_cost_note(study, spec).notes == (price.estimate_cost(study, spec).sentence, "Then this.")


def test_the_power_counts_the_trials_so_far(study: Study) -> None:
    assert price.power_sentence(study, 12, 12, 1).startswith("These 12 trials and the 12 so far find that a hyperparameter")
    assert price.power_sentence(study, 0, 12, 1).startswith("These 12 trials find that a hyperparameter")
    assert price.power_sentence(study, 0, 2, 1) == "More trials are needed to find any effect."
    assert "30 trials would have shown a difference of 2.6 times" in price.past_power_sentence(study, 30, 1)


def test_repeats_state_the_power_in_the_unit_of_the_objective() -> None:
    repeated = make_study([{"lr": 0.1}] * 3, {"val/loss": [[1.0], [1.1], [1.2]]}, seeds=[0, 1, 2])
    assert "differ by 0.3 in val/loss (3 times the standard deviation" in price.power_sentence(repeated, 12, 12, 1)


SPACE = {"lr": Parameter(low=1e-4, high=1e-1, scale="log"), "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log")}


def searched(ends: list[float], again: int = 0) -> Study:
    """Random settings with these results; the best one is repeated `again` times, with results that vary by 0.01."""
    rng = np.random.default_rng(0)
    params = [{n: p.value_at_position(float(rng.random())) for n, p in SPACE.items()} for _ in ends]
    best = int(np.argmin(ends))
    results = [*ends, *(ends[best] + 0.01 * (1 + i % 2) for i in range(again))]
    data = make_study(params + [params[best]] * again, {"val/loss": [[2.0, 1.0, end] for end in results]})
    spec = StudySpec(study="s", objective=AIM, parameters=SPACE, trials=len(ends), max_train_steps=2000)
    return replace(data, spec=spec, inferred={})


def test_the_stated_probability_and_size_are_those_of_repeated_searches() -> None:
    rng = np.random.default_rng(3)
    stated, came, expected, gained = [], [], [], []
    for _ in range(3000):
        costs = rng.gamma(2.0, size=30)
        chance, size = best_of.expected_gain(costs[:20], 10, margin=0.02)
        found = costs[:20].min() - costs[20:].min()
        stated.append(chance)
        came.append(found > 0.02)
        expected.append(chance * size)
        gained.append(found if found > 0.02 else 0.0)
    assert np.mean(stated) == pytest.approx(np.mean(came), abs=0.03)
    assert np.mean(gained) <= np.mean(expected) <= 1.5 * np.mean(gained)  # gains fade


def test_without_noise_the_probability_is_the_share_of_new_trials() -> None:
    assert best_of.expected_gain(np.arange(20.0), 20)[0] == pytest.approx(0.5)


def test_the_cost_of_a_search_comes_with_its_gain() -> None:
    made = searched([0.5 + 0.02 * i for i in range(24)])
    spec = made.spec.model_copy(update={"trials": 24})
    assert price.cost_and_gain_text(made, spec).endswith(
        "The probability of a better result is about 50 %, by at most about 0.037 in val/loss."
    )


def test_nothing_is_said_where_new_trials_differ_from_the_old_ones() -> None:
    made = searched([0.5 + 0.02 * i for i in range(24)])
    wider = made.spec.with_parameter("lr", SPACE["lr"].model_copy(update={"high": 1.0}))
    longer = made.spec.model_copy(update={"max_train_steps": 4000})
    adaptive = made.spec.model_copy(update={"sampler": Sampler(kind="adaptive")})
    assert [price.expected_gain_of_search(made, spec) for spec in (wider, longer, adaptive)] == [None] * 3
    assert price.expected_gain_of_search(searched([0.5, 0.6, 0.7]), made.spec) is None


def test_on_a_plateau_with_known_noise_the_search_ends() -> None:
    flat = searched([0.5 + 0.001 * i for i in range(24)], again=3)
    assert price.is_search_hopeless(flat, flat.spec)
    assert not price.is_search_hopeless(searched([0.5 + 0.05 * i for i in range(24)], again=3), flat.spec)
    more = found("under", "sampling", SetField(field="trials", value=24, why="w"), severity="note")
    spec = only_study(flat, more, *QUIET)
    assert spec.goal == "Stop searching and repeat the best setting: 5 seeds, to measure the variation between them"
    assert dict(spec.searched) == {}


def test_no_gain_beyond_a_perfect_score_is_promised() -> None:
    """An accuracy of 1 cannot be improved, and from 0.98 only by 0.02."""
    rng = np.random.default_rng(1)
    params = [{n: p.value_at_position(float(rng.random())) for n, p in SPACE.items()} for _ in range(24)]
    for best in (0.98, 1.0):
        data = make_study(
            params,
            {"val/accuracy": [[0.1, best - 0.03 * i] for i in range(24)]},
            objective="val/accuracy",
            direction="maximize",
        )
        spec = StudySpec(study="s", objective=data.spec.objective, parameters=SPACE, trials=24, max_train_steps=2000)
        expected = price.expected_gain_of_search(replace(data, spec=spec, inferred={}), spec)
        assert expected.size <= 1 - best + 1e-9
        assert (expected.chance == 0) == (best == 1.0)


def test_a_search_after_a_fix_by_hand_has_no_known_gain() -> None:
    made = searched([0.5 + 0.02 * i for i in range(24)])
    assert price.expected_gain_of_search(made, made.spec) is not None
    assert (
        price.expected_gain_of_search(made, made.spec.model_copy(update={"goal": goal_after_manual_fix("Shuffle the data.")}))
        is None
    )


def test_no_cross_entropy_below_zero_is_promised() -> None:
    steep = searched([0.02, *np.geomspace(0.5, 3.0, 11)])
    stated, capped = (
        price.expected_gain_of_search(replace(steep, kind=kind), steep.spec) for kind in ("supervised", "language-model")
    )
    assert stated.size > capped.size == 0.02
