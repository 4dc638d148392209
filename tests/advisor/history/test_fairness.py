"""Budgets of two settings, and limits on other metrics."""

import pytest
from gate_studies import loop

from advisor.history.fairness import Limit, budget_excesses, median_budget, parse_metric_limit
from advisor.model.errors import AdvisorError


def kinds(candidate, incumbent, *others):
    study = loop(("new", 0.9, {"params": {"lr": 0.2}, **candidate}), ("old", 1.0, incumbent), *others)
    return [e.kind for e in budget_excesses(study, study.trials[:1], study.trials[1:2])]


def test_equal_budgets_are_fair():
    assert kinds({}, {}) == []
    assert kinds({"seconds": 66}, {"seconds": 60}) == []
    assert kinds({"steps": 200, "seconds": 30}, {}) == []


def test_more_of_anything_is_named():
    assert kinds({"steps": 800, "seconds": 120}, {}) == ["steps", "seconds"]
    assert kinds({"seconds": 100}, {}) == ["seconds"]
    assert kinds({"metrics": {"train/tokens": 2e6}}, {"metrics": {"train/tokens": 1e6}}) == ["tokens"]
    large, small = ({"tags": {"advisor.model_parameters": str(n)}} for n in (2_000_000, 1_000_000))
    assert kinds(large, small) == ["parameters"]
    assert kinds(small, large) == []
    batches = ({"tags": {"advisor.batch_size": str(n)}} for n in (64, 32))
    assert kinds(*batches) == ["examples"]


def test_with_a_fixed_time_more_steps_are_a_merit():
    assert kinds({"steps": 800}, {"steps": 400}) == []
    assert kinds({"steps": 800, "seconds": 61}, {"steps": 400}) == []


def test_times_that_follow_the_steps_are_not_fixed():
    assert kinds({"steps": 476, "seconds": 71}, {}) == ["steps"]
    assert kinds({"steps": 412, "seconds": 61.6}, {}) == ["steps"]
    assert kinds({"steps": 420, "seconds": 60.9}, {}) == []


def test_runs_that_were_copied_have_no_time():
    study = loop(("old", 1.0, {"seconds": 0.01}))
    assert median_budget(study, study.trials, "seconds") != median_budget(study, study.trials, "seconds")
    assert median_budget(study, study.trials, "steps") == 400


@pytest.mark.parametrize(("planned", "steps"), [(401, 401), (400, 400), (500, 400)])
def test_a_training_that_counts_from_0_has_as_many_steps_as_planned(planned, steps):
    study = loop(("a", 1.0, {"tags": {"advisor.max_train_steps": str(planned)}}))
    assert median_budget(study, study.trials, "steps") == steps


def test_a_limit_takes_the_last_values():
    study = loop(("a", 1.0, {"metrics": {"memory": 10}}), ("b", 1.0, {"metrics": {"memory": 14}}), ("c", 1.0, {}))
    limit = parse_metric_limit(study, study.trials[:2], "memory=13", at_most=True)
    assert (limit.value, limit.is_met) == (12, True)
    assert not parse_metric_limit(study, study.trials[:2], "memory=13", at_most=False).is_met
    assert not parse_metric_limit(study, study.trials[2:], "memory=13", at_most=True).is_met
    assert not Limit(metric="m", at_most=1.0, value=None).is_met
    for text in ("memory", "memory=much", "=3", "memory=inf", "memory=nan"):
        with pytest.raises(AdvisorError, match="--at-most takes METRIC=VALUE"):
            parse_metric_limit(study, study.trials, text, at_most=True)
