import pytest

from advisor.model.spec import Bounds, Checkpoints, Parameter, Region
from advisor.model.spec_yaml import parse_study_file

SPEC = parse_study_file(
    """
study: s
objective: {metric: val/loss, direction: minimize}
parameters:
  momentum: {low: 0.5, high: 0.999, scale: reverse-log, when: {optimizer: sgd}}
  optimizer: {choices: [sgd, adam]}
  effective_learning_rate: {low: 1e-3, high: 10, scale: log, equals: learning_rate / (1 - momentum)}
  learning_rate: {role: derived, formula: effective_learning_rate * (1 - momentum)}
  double_rate: {role: derived, formula: 2 * learning_rate}
  batch_size: {role: derived, type: int, formula: 8 * double_rate}
trials: 10
seeds: 3
max_train_steps: 100
checkpoints: {keep_best: 2}
"""
)


def test_a_trial_is_completed_by_its_formulas_in_whatever_order_they_stand():
    trial = SPEC.with_computed_values({"effective_learning_rate": 1.0, "momentum": 0.75, "optimizer": "sgd"})
    assert trial["learning_rate"] == 0.25
    assert trial["double_rate"] == 0.5
    assert trial["batch_size"] == 4
    assert isinstance(trial["batch_size"], int)


def test_a_trial_of_another_form_is_read_in_this_one():
    assert SPEC.with_computed_values({"learning_rate": 0.5, "momentum": 0.75})["effective_learning_rate"] == 2.0
    assert SPEC.with_computed_values({"learning_rate": 0.5}) == {"learning_rate": 0.5, "double_rate": 1.0, "batch_size": 8}
    assert SPEC.with_computed_values({"learning_rate": 0.5, "momentum": 1.0}).keys().isdisjoint({"effective_learning_rate"})


def test_what_a_trial_has_stays():
    logged = {"learning_rate": 0.5, "momentum": 0.75, "effective_learning_rate": 7.0}
    assert SPEC.with_computed_values(logged)["effective_learning_rate"] == 7.0


def test_a_region_holds_where_all_its_bounds_do():
    region = Region(where={"lr": Bounds(low=0.3), "optimizer": Bounds(choices=("sgd",)), "m": Bounds(low=0.5, high=0.9)})
    trial = {"lr": 0.3, "optimizer": "sgd", "m": 0.9}
    assert region.contains(trial)
    for other in ({"lr": 0.2}, {"optimizer": "adam"}, {"m": 0.95}, {"m": 0.4}, {"lr": "high"}):
        assert not region.contains({**trial, **other})
    assert not region.contains({"lr": 1.0, "optimizer": "sgd"})
    assert SPEC.model_copy(update={"forbidden": (region,)}).forbidden_region_of(trial) == region
    assert SPEC.forbidden_region_of(trial) is None


def test_how_many_checkpoints_to_keep_is_read():
    assert SPEC.checkpoints == Checkpoints(keep_best=2)


def test_derived_parameters_are_not_searched():
    assert set(SPEC.searched) == {"momentum", "optimizer", "effective_learning_rate"}


@pytest.mark.parametrize("fields", [{}, {"low": 1.0, "choices": (1,)}, {"low": 2.0, "high": 1.0}, {"choices": ()}])
def test_bounds_are_a_range_or_choices(fields):
    with pytest.raises(ValueError, match=r"give low|must not exceed|at least 1"):
        Bounds(**fields)


def test_a_search_within_another_has_no_new_values_or_hyperparameters():
    narrow = SPEC.with_parameter("momentum", Parameter(low=0.6, high=0.7))
    wide = SPEC.with_parameter("momentum", Parameter(low=0.1, high=0.99))
    assert narrow.searches_within(SPEC)
    assert not wide.searches_within(SPEC)
    assert not SPEC.with_parameter("dropout", Parameter(low=0.0, high=0.5)).searches_within(SPEC)
    assert not SPEC.with_parameter("optimizer", Parameter(choices=("lion", "sgd"))).searches_within(SPEC)
