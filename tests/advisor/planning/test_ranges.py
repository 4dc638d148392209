"""The next study leaves out what the trials rule out, and says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from studies import make_study

from advisor.model.change import SetField, SetRange
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Parameter, Sampler
from advisor.model.study import Study
from advisor.model.words import plain_number
from advisor.planning import plan
from advisor.planning.base import base
from advisor.planning.designs.per_optimizer import divide_by_optimizer
from advisor.planning.ranges import narrowed

LR = Parameter(low=1e-5, high=1e-1, scale="log", why="tune it in each study; unchanged since the last round")
ACTIVATION = Parameter(role="scientific", choices=("relu", "gelu"))


def sweep() -> Study:
    """The best rate is 1e-3; each decade away from it costs 0.3."""
    rates = np.geomspace(1e-5, 1e-1, 17)
    params = [{"lr": float(r), "activation": ("relu", "gelu")[i % 2]} for i, r in enumerate(rates)]
    costs = [0.3 + 0.3 * abs(np.log10(r) + 3) ** 2 + 0.01 * (i % 2) for i, r in enumerate(rates)]
    return make_study(params, {"val/loss": [[2.0, c] for c in costs]}, space={"lr": LR, "activation": ACTIVATION})


def test_rates_that_are_known_to_be_worse_are_left_out() -> None:
    study = sweep()
    lr = narrowed(study, study.spec, keep=()).parameters["lr"]
    assert lr.low is not None
    assert lr.high is not None
    assert 1e-4 < lr.low < 7e-4
    assert 1.4e-3 < lr.high < 1e-2
    assert lr.why == "the best value lies here with a probability of about 90 %, by a model of 17 settings"


def test_ranges_of_findings_special_studies_and_those_after_an_adaptive_search_stay() -> None:
    study = sweep()
    spec = study.spec
    both = [("lr", "low"), ("lr", "high")]
    assert narrowed(study, spec, keep=both) == spec
    probe = spec.model_copy(update={"probe": "warmup"})
    assert narrowed(study, probe, keep=()) == probe
    adaptive = spec.model_copy(update={"sampler": Sampler(kind="adaptive")})
    assert narrowed(study, adaptive, keep=()) != adaptive
    assert narrowed(replace(study, spec=adaptive), adaptive, keep=()) == adaptive


def test_the_next_study_has_the_narrower_range_unless_a_finding_set_it() -> None:
    study = sweep()
    more = Finding(
        rule="r",
        goal="sampling",
        playbook="p",
        message="m",
        action="a",
        severity="warning",
        confidence=1.0,
        changes=(SetField(field="trials", value=40, why="w"),),
    )
    spec, *_ = plan(study, [Verdict(rule="r", status="fired", findings=(more,))]).specs
    assert spec.trials == 40
    assert spec.parameters["lr"].high != 0.1
    wider = more.model_copy(update={"changes": (SetRange(parameter="lr", low=1e-5, high=0.5, scale="log", why="w"),)})
    spec, *_ = plan(study, [Verdict(rule="r", status="fired", findings=(wider,))]).specs
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-5, 0.5)


def test_each_optimizer_is_judged_by_its_own_trials() -> None:
    rates = np.geomspace(1e-5, 1e-1, 12)
    best = {"adam": -3.5, "sgd": -1.5}
    params = [{"lr": float(r), "optimizer": name} for r in rates for name in best]
    costs = [[2.0, 0.3 + 0.2 * (np.log10(float(p["lr"])) - best[str(p["optimizer"])]) ** 2] for p in params]
    chooser = Parameter(role="scientific", choices=("adam", "sgd"))
    study = make_study(params, {"val/loss": costs}, space={"lr": LR, "optimizer": chooser})
    adam, sgd = (narrowed(study, s, keep=()).parameters["lr"] for s in divide_by_optimizer([study.spec]))
    assert adam.low is not None
    assert adam.high is not None
    assert sgd.low is not None
    assert sgd.high is not None
    assert adam.low < 10**-3.5 < adam.high < 1e-2 < sgd.high
    assert sgd.low > 10**-3.5


def test_the_trials_may_cut_both_ends_of_a_range_that_a_finding_cut() -> None:
    study = sweep()
    cut = study.spec.with_parameter("lr", LR.model_copy(update={"high": 0.03}))
    cut = cut.model_copy(update={"goal": "Narrow lr: 1e-5 to 0.03"})
    spec = narrowed(study, cut, keep=[("lr", "high")])
    lr = spec.parameters["lr"]
    assert lr.low is not None
    assert 1e-4 < lr.low < 7e-4
    assert lr.high is not None
    assert 1e-3 < lr.high <= 0.03
    assert spec.goal == f"Narrow lr: {plain_number(lr.low)} to {plain_number(lr.high)}"


def test_the_trials_may_cut_both_ends_of_a_range_that_was_inferred() -> None:
    """The next study rounds inferred ends outwards, to 1e-5 and 0.0985; no finding widened the range for that."""
    rates = np.geomspace(1.03e-5, 9.841e-2, 17)
    costs = [[2.0, 0.3 + 0.3 * abs(np.log10(r) + 3) ** 2] for r in rates]
    study = make_study([{"lr": float(r)} for r in rates], {"val/loss": costs})
    start = base(study)
    assert start.parameters["lr"].high != study.spec.parameters["lr"].high
    cut = start.with_parameter("lr", start.parameters["lr"].model_copy(update={"low": 3e-5}))
    lr = narrowed(study, cut, keep=[("lr", "low")]).parameters["lr"]
    assert lr.low is not None
    assert 3e-5 <= lr.low < 1e-3
    assert lr.high is not None
    assert 1.4e-3 < lr.high < 1e-2


def test_a_range_that_a_finding_widened_stays() -> None:
    study = sweep()
    wider = study.spec.with_parameter("lr", LR.model_copy(update={"high": 1.0}))
    assert narrowed(study, wider, keep=[("lr", "high")]) == wider
