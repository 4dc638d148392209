"""The model of the adaptive sampler: axes of a space, expected improvements and failures."""

import math

import numpy as np

from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.planning.sampling.response import ResponseModel, SearchAxes

SPEC = StudySpec(
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
AXES = SearchAxes(SPEC)
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
    assert all(p.allows_logged_value(t[n]) for t in trials for n, p in SPEC.searched.items() if n in t)
    assert all(("momentum" in t) == (t["optimizer"] == "sgd") for t in trials)
    beyond = AXES.points_beyond_ranges(points[:2], "lr", "high", (1e-4, 100.0), 20, RNG)
    assert 1 <= beyond[:, 1].min() < beyond[:, 1].max() <= 1.5


def test_ends_near_a_point():
    assert AXES.range_ends_near(np.array([0.95, 0.5, -0.2, 1]), 0.1) == [("layers", "high"), ("momentum", "low")]


def test_trials_with_other_fixed_values_are_not_comparable():
    assert AXES.comparable({"lr": 5.0, "epochs": 3})
    assert not AXES.comparable({"lr": 0.1, "epochs": 9})


def test_merits_are_high_at_the_optimum_and_low_where_trials_fail():
    points = AXES.uniform_points(40, RNG)
    costs = np.where(points[:, 1] > 0.8, math.nan, (points[:, 1] - 0.7) ** 2)
    model = ResponseModel(AXES, points, costs, np.zeros(40, dtype=np.bool_))
    at = np.repeat(points[:1], 3, axis=0)
    at[:, 1] = (0.2, 0.7, 0.95)
    bad, good, failing = model.log_merits(at)
    assert good > bad
    assert good > failing
    assert abs(model.leaders(1)[0, 1] - 0.7) < 0.1


def test_a_huge_cost_does_not_hide_the_differences_between_good_ones():
    points = AXES.uniform_points(30, RNG)
    costs = 1 + (points[:, 1] - 0.5) ** 2
    costs[np.argmax(points[:, 1])] = 1e9
    model = ResponseModel(AXES, points, costs, np.zeros(30, dtype=np.bool_))
    assert abs(model.leaders(1)[0, 1] - 0.5) < 0.1
