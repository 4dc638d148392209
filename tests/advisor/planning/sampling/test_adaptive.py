"""Adaptive sampling: the history decides, what failed is kept away from, the same history gives the same trials."""

import math
from statistics import median

import numpy as np
import pytest

from advisor.model.errors import AdvisorError
from advisor.model.spec import Bounds, Objective, Parameter, Region, Sampler, StudySpec
from advisor.planning.sampling.adaptive import (
    MIN_RESULTS_FOR_MODEL,
    Observation,
    ResponseModel,
    SearchAxes,
    suggest_trial,
    with_wider_ranges,
)
from advisor.planning.sampling.halton import draw_trials

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="accuracy", direction="maximize"),
    parameters={
        "lr": Parameter(low=1e-4, high=1.0, scale="log"),
        "layers": Parameter(type="int", low=1, high=4),
        "optimizer": Parameter(choices=("sgd", "adam")),
        "momentum": Parameter(low=0, high=0.99, when={"optimizer": "sgd"}),
        "epochs": Parameter(role="fixed", value=3),
    },
    trials=30,
    sampler=Sampler(kind="adaptive", seed=3),
)
HALTON = SPEC.model_copy(update={"sampler": Sampler(seed=3)})


def trained(params):
    """Best at a learning rate of 0.03 with Adam; fails above 0.1."""
    if params["lr"] > 0.1:
        return Observation(params, math.nan)
    return Observation(params, 1 - 0.1 * (math.log10(params["lr"] / 0.03)) ** 2 - 0.05 * (params["optimizer"] == "sgd"))


def history(count):
    return [trained(p) for p in draw_trials(HALTON, count)]


def several(spec, known, count):
    drawn = []
    for _ in range(count):
        drawn.append(suggest_trial(spec, [*known, *(Observation(p, running=True) for p in drawn)]))
    return drawn


def test_until_there_are_results_the_halton_sequence_goes_on():
    assert several(SPEC, [], 3) == list(draw_trials(HALTON, 3))
    few = [Observation(p, None) for p in draw_trials(HALTON, 2 * MIN_RESULTS_FOR_MODEL)]  # all failed
    assert [suggest_trial(SPEC, few)] == list(draw_trials(HALTON, 1, skip=2 * MIN_RESULTS_FOR_MODEL))


def test_trials_follow_from_results_and_keep_away_from_what_failed():
    known = history(20)
    failed = sum(not p.feasible for p in known)
    assert 3 <= failed <= 10
    for _ in range(8):
        known.append(trained(suggest_trial(SPEC, known)))
    later = known[20:]
    assert sum(not p.feasible for p in later) <= 2
    assert median(p.value for p in later if p.feasible) > median(p.value for p in known[:20] if p.feasible) + 0.05
    assert all(("momentum" in p.params) == (p.params["optimizer"] == "sgd") for p in known)
    assert all(p.params["epochs"] == 3 and isinstance(p.params["layers"], int) for p in known)


def test_the_same_history_gives_the_same_trials_and_another_seed_others():
    known = history(20)
    assert suggest_trial(SPEC, known) == suggest_trial(SPEC, known)
    other = SPEC.model_copy(update={"sampler": Sampler(kind="adaptive", seed=4)})
    assert suggest_trial(SPEC, known) != suggest_trial(other, known)


def test_trials_at_a_time_differ():
    known = history(20)
    drawn = several(SPEC, known, 4)
    assert len({tuple(p.items()) for p in drawn}) == 4
    assert drawn[1] == suggest_trial(SPEC, [*known, Observation(drawn[0], running=True)])


def test_what_is_forbidden_is_not_suggested():
    spec = SPEC.model_copy(update={"forbidden": (Region(where={"lr": Bounds(low=0.01)}),)})
    known = [trained(p) for p in draw_trials(spec.model_copy(update={"sampler": Sampler(seed=3)}), 15)]
    assert all(p["lr"] <= 0.01 for p in several(spec, known, 5))


def test_the_sampler_of_sequences_says_who_draws_adaptive_trials():
    with pytest.raises(AdvisorError, match="advisor run"):
        draw_trials(SPEC, 1)


def window(low, high):
    return StudySpec(
        study="s",
        objective=Objective(metric="loss", direction="minimize"),
        parameters={"lr": Parameter(low=low, high=high, scale="log"), "dropout": Parameter(low=0, high=0.9)},
        sampler=Sampler(kind="adaptive", seed=1),
    )


def losses(spec, count):
    """Results of quasi-random trials of the space, best at a learning rate of 0.1; dropout matters little."""
    trials = draw_trials(spec.model_copy(update={"sampler": Sampler(seed=1)}), count)
    return [Observation(p, math.log10(p["lr"] / 0.1) ** 2 + 0.01 * p["dropout"]) for p in trials]


def test_trials_outside_the_space_inform_the_model():
    known = losses(window(1e-5, 1e-3), 12)
    drawn = suggest_trial(window(1e-5, 1.0), known)
    assert 1e-3 < drawn["lr"] <= 1.0
    elsewhere = [*known, *losses(window(1e-2, 1.0), 12)]
    assert suggest_trial(window(1e-5, 1e-3), elsewhere)["lr"] <= 1e-3


def test_a_range_grows_where_more_is_expected_beyond_its_end_and_no_further_than_its_limits():
    low = window(1e-5, 1e-3)
    ranges = with_wider_ranges(low, losses(low, 12)).parameters
    assert ranges["lr"].low == 1e-5
    assert 3e-3 <= ranges["lr"].high <= 0.1
    assert ranges["dropout"] == low.parameters["dropout"]
    limited = low.with_parameter("lr", Parameter(low=1e-5, high=1e-3, scale="log", limits=(1e-5, 2e-3)))
    assert with_wider_ranges(limited, losses(low, 12)).parameters["lr"].high == 2e-3


def test_a_range_around_the_optimum_stays():
    right = window(1e-3, 10.0)
    assert with_wider_ranges(right, losses(right, 24)) == right
    assert with_wider_ranges(right, losses(right, MIN_RESULTS_FOR_MODEL - 1)) == right


RESPONSE_SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={
        "lr": Parameter(low=1e-4, high=1.0, scale="log"),
        "layers": Parameter(type="int", low=1, high=4),
        "optimizer": Parameter(choices=("sgd", "adam")),
        "momentum": Parameter(low=0, high=0.9, when={"optimizer": "sgd"}),
        "epochs": Parameter(role="fixed", value=3),
    },
)
AXES = SearchAxes(RESPONSE_SPEC)
RNG = np.random.default_rng(0)


def test_positions_and_trials_agree():
    trial = {"lr": 0.01, "layers": 4, "optimizer": "sgd", "momentum": 0.45, "epochs": 3}
    (point,) = AXES.positions([trial])
    assert dict(zip(AXES.names, point, strict=True)) == {"layers": 1, "lr": 0.5, "momentum": 0.5, "optimizer": 0}
    assert AXES.trial(point) == trial
    assert AXES.positions([{"lr": 10.0, "optimizer": "lion"}])[0, [1, 3]].tolist() == [1.25, -1.0]


def test_points_are_trials_of_the_space():
    points = AXES.uniform_points(50, RNG)
    points = np.vstack([points, AXES.points_near(points[:3], 50, 0.5, RNG)])
    assert set(points[:, 0] * 3) == {0, 1, 2, 3}
    trials = [AXES.trial(p) for p in points]
    assert all(p.allows_logged_value(t[n]) for t in trials for n, p in RESPONSE_SPEC.searched.items() if n in t)
    assert all(("momentum" in t) == (t["optimizer"] == "sgd") for t in trials)
    beyond = AXES.points_beyond_ranges(points[:2], "lr", "high", (1e-4, 100.0), 20, RNG)
    assert 1 <= beyond[:, 1].min() < beyond[:, 1].max() <= 1.5


def test_ends_near_a_point():
    assert AXES.range_ends_near(np.array([0.95, 0.5, -0.2, 1]), 0.1) == [("layers", "high"), ("momentum", "low")]


def test_trials_with_other_fixed_values_are_not_comparable():
    assert AXES.has_same_fixed_values({"lr": 5.0, "epochs": 3})
    assert not AXES.has_same_fixed_values({"lr": 0.1, "epochs": 9})


def test_merits_are_high_at_the_optimum_and_low_where_trials_fail():
    points = AXES.uniform_points(40, RNG)
    costs = np.where(points[:, 1] > 0.8, math.nan, (points[:, 1] - 0.7) ** 2)
    model = ResponseModel(AXES, points, costs, np.zeros(40, dtype=np.bool_))
    at = np.repeat(points[:1], 3, axis=0)
    at[:, 1] = (0.2, 0.7, 0.95)
    bad, good, failing = model.log_acquisition(at)
    assert good > bad
    assert good > failing
    assert abs(model.leaders(1)[0, 1] - 0.7) < 0.1


def test_a_huge_cost_does_not_hide_the_differences_between_good_ones():
    points = AXES.uniform_points(30, RNG)
    costs = 1 + (points[:, 1] - 0.5) ** 2
    costs[np.argmax(points[:, 1])] = 1e9
    model = ResponseModel(AXES, points, costs, np.zeros(30, dtype=np.bool_))
    assert abs(model.leaders(1)[0, 1] - 0.5) < 0.1
