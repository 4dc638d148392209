"""The probability and the size of the gain of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_studies import AIM, QUIET, found, only_study
from studies import make_study

from advisor.model.change import SetField
from advisor.model.spec import Parameter, Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning import gain, price
from advisor.planning.goals import goal_after_manual_fix
from advisor.stats import best_of

SPACE = {"lr": Parameter(low=1e-4, high=1e-1, scale="log"), "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log")}


def study(ends: list[float], again: int = 0) -> Study:
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
    made = study([0.5 + 0.02 * i for i in range(24)])
    spec = made.spec.model_copy(update={"trials": 24})
    assert price.summary(made, spec).endswith(
        "The probability of a better result is about 50 %, by at most about 0.037 in val/loss."
    )


def test_nothing_is_said_where_new_trials_differ_from_the_old_ones() -> None:
    made = study([0.5 + 0.02 * i for i in range(24)])
    wider = made.spec.with_parameter("lr", SPACE["lr"].model_copy(update={"high": 1.0}))
    longer = made.spec.model_copy(update={"max_train_steps": 4000})
    adaptive = made.spec.model_copy(update={"sampler": Sampler(kind="adaptive")})
    assert [gain.expected_gain_of_search(made, spec) for spec in (wider, longer, adaptive)] == [None] * 3
    assert gain.expected_gain_of_search(study([0.5, 0.6, 0.7]), made.spec) is None


def test_on_a_plateau_with_known_noise_the_search_ends() -> None:
    flat = study([0.5 + 0.001 * i for i in range(24)], again=3)
    assert gain.is_search_hopeless(flat, flat.spec)
    assert not gain.is_search_hopeless(study([0.5 + 0.05 * i for i in range(24)], again=3), flat.spec)
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
        expected = gain.expected_gain_of_search(replace(data, spec=spec, inferred={}), spec)
        assert expected is not None
        assert expected.size <= 1 - best + 1e-9
        assert (expected.chance == 0) == (best == 1.0)


def test_a_search_after_a_fix_by_hand_has_no_known_gain() -> None:
    made = study([0.5 + 0.02 * i for i in range(24)])
    assert gain.expected_gain_of_search(made, made.spec) is not None
    assert (
        gain.expected_gain_of_search(made, made.spec.model_copy(update={"goal": goal_after_manual_fix("Shuffle the data.")}))
        is None
    )


def test_no_cross_entropy_below_zero_is_promised() -> None:
    steep = study([0.02, *np.geomspace(0.5, 3.0, 11)])
    stated, capped = (
        gain.expected_gain_of_search(replace(steep, kind=kind), steep.spec) for kind in ("supervised", "language-model")
    )
    assert stated is not None
    assert capped is not None
    assert stated.size > capped.size == 0.02
