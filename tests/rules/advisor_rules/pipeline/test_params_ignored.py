"""params-ignored: settings that leave no trace in the curves."""

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

from advisor.engine.explain import explain
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.execution import jobs
from advisor.model.spec import Objective, Parameter, StudySpec

RULE = "params-ignored"


def curve(key, points=20, digits=12):
    """A falling loss that is the same for the same key."""
    noise = np.random.default_rng(abs(hash(key)) % 2**32).normal(0, 0.05, points)
    return np.round(2 * np.exp(-np.arange(points) / 8) + 0.5 + noise, digits)


def study(params, keys, **kwargs):
    return make_study(params, {"val/loss": [curve(k) for k in keys]}, **kwargs)


GRID = [{"lr": lr, "weight_decay": wd} for lr in (0.01, 0.1, 1.0) for wd in (1e-4, 1e-3, 1e-2)]


def example():
    return study(GRID, [0] * 9, seeds=[7] * 9)


def test_no_hyperparameter_reaches_the_training():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "critical"
    assert finding.subject is None
    assert len(finding.trials) == 9
    (change,) = finding.changes
    assert change.text == finding.action


def test_only_the_seed_does_anything():
    seeds = [i % 3 for i in range(9)]
    (finding,) = verdict(RULE, study(GRID, seeds, seeds=seeds)).findings
    assert finding.subject is None
    assert finding.severity == "critical"


def test_seeds_that_do_nothing_either():
    (finding,) = verdict(RULE, study(GRID, [0] * 9, seeds=range(9))).findings
    assert finding.severity == "critical"


def test_one_hyperparameter_does_nothing():
    (finding,) = verdict(RULE, study(GRID, [p["lr"] for p in GRID], seeds=[1] * 9)).findings
    assert (finding.subject, finding.severity) == ("weight_decay", "warning")
    assert "3 groups of trials" in finding.message
    (finding,) = verdict(RULE, study(GRID, [p["weight_decay"] for p in GRID], seeds=[1] * 9)).findings
    assert (finding.subject, finding.severity) == ("lr", "critical")


def test_it_explains_that_the_hyperparameter_is_insensitive():
    grid = [{"lr": lr, "weight_decay": wd} for lr in np.geomspace(0.001, 1, 8) for wd in (1e-4, 1e-3, 1e-2)]
    curves = [curve(0) + np.log10(p["lr"] / 0.03) ** 2 for p in grid]
    made = make_study(grid, {"val/loss": curves}, seeds=[1] * 24)
    rules = [r for r in load_rules() if r.rule_id() in (RULE, "space-insensitive")]
    found = {f.rule: f for v in explain(judge(made, rules), rules) for f in v.findings}
    assert found["space-insensitive"].explained_by.rule == RULE


def test_results_that_were_copied():
    random = np.random.default_rng(0)
    params = [{"lr": float(10 ** random.uniform(-4, 0)), "momentum": float(random.uniform())} for _ in range(12)]
    keys = [*range(11), 3]
    (finding,) = verdict(RULE, study(params, keys, seeds=range(12))).findings
    assert finding.severity == "critical"
    assert finding.trials == ("run3", "run11")
    assert "lr and momentum" in finding.message


def test_a_hyperparameter_of_the_other_optimizer_is_innocent():
    grid = [{"optimizer": o, "momentum": m, "lr": lr} for o in ("sgd", "adam") for m in (0.5, 0.9) for lr in (0.1, 1.0)]
    keys = [(p["optimizer"], p["lr"], p["momentum"] if p["optimizer"] == "sgd" else 0) for p in grid]
    assert verdict(RULE, study(grid, keys, seeds=[1] * 8)).status == "quiet"


def test_a_threshold_that_is_never_reached_is_innocent():
    grid = [{"lr": lr, "clip": c} for lr in (0.01, 0.1, 1.0) for c in (0.1, 1.0, 10.0)]
    keys = [(p["lr"], min(p["clip"], 0.5)) for p in grid]
    assert verdict(RULE, study(grid, keys, seeds=[1] * 9)).status == "quiet"


@pytest.mark.parametrize("name", ["num_workers", "prefetch_factor"])
def test_workers_and_logging_are_no_matter_of_results(name):
    grid = [{"lr": lr, name: w} for lr in (0.01, 0.1, 1.0) for w in (0, 2, 4)]
    assert verdict(RULE, study(grid, [p["lr"] for p in grid], seeds=[1] * 9)).status == "quiet"


def test_any_other_result_that_differs_tells_trials_apart():
    curves = {"val/loss": [curve(0)] * 9, "train/loss": [curve(i) for i in range(9)]}
    assert verdict(RULE, make_study(GRID, curves, seeds=[1] * 9)).status == "quiet"


def test_trials_that_never_moved_show_nothing():
    stuck = make_study(GRID, {"val/accuracy": [[0.1] * 20] * 9}, objective="val/accuracy", direction="maximize")
    assert verdict(RULE, stuck).status == "not-assessed"


def test_repeats_of_one_setting_are_no_matter_of_it():
    assert verdict(RULE, study([*GRID, *GRID], [*range(9)] * 2, seeds=[1] * 18)).status == "quiet"


def test_it_cannot_tell_final_values_or_seeds_of_each_trial():
    final = verdict(RULE, make_study(GRID, {"val/loss": [0.5] * 9}))
    assert final.status == "not-assessed"
    assert "log the objective during training" in final.reason
    seeded = verdict(RULE, study(GRID, range(9), seeds=range(9)))
    assert seeded.status == "not-assessed"
    assert "a different seed" in seeded.reason
    assert "`seeds: 2`" in seeded.reason


def test_repeats_as_a_study_of_two_seeds_has_them_tell():
    spec = StudySpec(
        study="s",
        objective=Objective(metric="val/loss", direction="minimize"),
        parameters={"lr": Parameter(low=0.001, high=1, scale="log")},
        trials=9,
        seeds=2,
    )
    planned = jobs(spec)
    params, seeds = [dict(j.params) for j in planned], [j.seed for j in planned]
    (finding,) = verdict(RULE, study(params, seeds, seeds=seeds)).findings
    assert finding.severity == "critical"
    assert verdict(RULE, study(params, range(18), seeds=seeds)).status == "quiet"


@pytest.mark.parametrize(("trials", "examples", "points"), [(5, 20, 3), (20, 20, 10), (60, 100, 5), (300, 500, 30)])
def test_coarse_results_that_agree_by_chance(trials, examples, points):
    random = np.random.default_rng(trials)
    fired = 0
    for _ in studies(100 if trials < 100 else 20):
        rates = 0.05 + 0.5 * np.exp(-np.arange(points) / (points / 4))
        errors = random.binomial(examples, rates, size=(trials, points)) / examples
        params = [{"lr": float(v)} for v in random.uniform(size=trials)]
        fired += verdict(RULE, make_study(params, {"val/error": errors}, objective="val/error")).status == "fired"
    assert fired == 0
