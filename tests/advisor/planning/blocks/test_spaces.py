"""Comparison of spaces: which trials are data of a study, what differs, and ranges that only grow."""

from advisor.model.spec import Bounds, Objective, Parameter, Region, StudySpec
from advisor.planning.blocks import TrainedTrial
from advisor.planning.blocks.spaces import (
    changed_hyperparameters,
    earlier_space_covers,
    enclosing_space,
    same_space,
    sampler_observations,
    trials_of_same_length,
    trials_within_space,
)

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="accuracy", direction="maximize"),
    parameters={"lr": Parameter(low=1e-4, high=1e-2, scale="log"), "depth": Parameter(choices=(1, 2))},
    max_train_steps=10,
)


def lr(low, high):
    return SPEC.with_parameter("lr", Parameter(low=low, high=high, scale="log"))


def trial(rate, steps=10, cost=0.5, probe=None):
    params = {"lr": rate, "depth": 1}
    return TrainedTrial(f"{rate}", params, params, cost, steps, probe=probe)


def test_ranges_only_grow():
    assert enclosing_space(SPEC, lr(1e-3, 1e-1)).parameters["lr"].low == 1e-4
    assert enclosing_space(SPEC, lr(1e-3, 1e-1)).parameters["lr"].high == 1e-1
    linear = SPEC.with_parameter("lr", Parameter(low=0.0, high=1e-2))
    assert enclosing_space(linear, SPEC).parameters["lr"].low == 1e-4  # a logarithmic range cannot begin at zero


def test_choices_are_only_added_unless_the_plan_fixes_one():
    other = SPEC.with_parameter("depth", Parameter(choices=(2, 3)))
    assert enclosing_space(SPEC, other).parameters["depth"].choices == (1, 2, 3)
    fixed = SPEC.with_parameter("depth", Parameter(role="fixed", value=2))
    assert enclosing_space(SPEC, fixed).parameters["depth"] == fixed.parameters["depth"]


def test_a_type_that_is_left_out_is_no_change():
    stated = SPEC.with_parameter("lr", Parameter(type="float", low=1e-4, high=1e-2, scale="log", limits=(0, 1)))
    assert same_space(SPEC, stated)
    assert changed_hyperparameters(SPEC, stated) == []
    assert changed_hyperparameters(SPEC, lr(1e-4, 1e-1)) == ["lr"]
    assert not same_space(SPEC, SPEC.model_copy(update={"max_train_steps": 20}))
    fixed = SPEC.with_parameter("depth", Parameter(role="fixed", value=1))
    assert not same_space(SPEC, fixed)


def test_trials_within_the_space_and_comparable_ones():
    inside, outside, longer = trial(1e-3), trial(1e-1), trial(1e-3, steps=20)
    trials = [inside, outside, longer, trial(1e-3, probe="warmup")]
    assert trials_within_space(SPEC, trials) == [inside]
    assert trials_of_same_length(SPEC, trials) == [inside, outside]
    forbidden = SPEC.model_copy(update={"forbidden": (Region(where={"lr": Bounds(low=5e-4)}),)})
    assert trials_within_space(forbidden, trials) == []


def test_a_space_without_a_hyperparameter_covers_no_trial_that_searches_it():
    more = SPEC.with_parameter("dropout", Parameter(low=0, high=0.5))
    assert earlier_space_covers(SPEC, SPEC, {"lr": 1e-3, "depth": 1})
    assert not earlier_space_covers(SPEC, SPEC, {"lr": 1e-1, "depth": 1})
    assert not earlier_space_covers(SPEC, more, {"lr": 1e-3, "depth": 1, "dropout": 0.1})


def test_the_sampler_sees_values_of_the_objective_and_failures():
    seen = sampler_observations(SPEC, [trial(1e-3, cost=-0.9), trial(1e-2, cost=float("nan"))])
    assert [(o.value, o.feasible) for o in seen] == [(0.9, True), (None, False)]
