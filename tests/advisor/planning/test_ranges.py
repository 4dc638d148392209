"""The next study leaves out what the trials rule out, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planning_studies import found
from studies import make_study

from advisor.model.change import AddParameter, SetField, SetRange
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Parameter, Sampler, StudySpec
from advisor.model.study import Study
from advisor.model.words import plain_number
from advisor.planning import plan
from advisor.planning.base import initial_draft
from advisor.planning.designs.per_optimizer import divide_by_optimizer
from advisor.planning.ranges import wider_rate_range, with_narrower_ranges, with_range_for_batch_size

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
    lr = with_narrower_ranges(study, study.spec, keep=()).parameters["lr"]
    assert 1e-4 < lr.low < 7e-4
    assert 1.4e-3 < lr.high < 1e-2
    assert lr.why == "the best value lies here with a probability of about 90 %, by a model of 17 settings"


def test_ranges_of_findings_special_studies_and_those_after_an_adaptive_search_stay() -> None:
    study = sweep()
    spec = study.spec
    both = [("lr", "low"), ("lr", "high")]
    assert with_narrower_ranges(study, spec, keep=both) == spec
    probe = spec.model_copy(update={"probe": "warmup"})
    assert with_narrower_ranges(study, probe, keep=()) == probe
    adaptive = spec.model_copy(update={"sampler": Sampler(kind="adaptive")})
    assert with_narrower_ranges(study, adaptive, keep=()) != adaptive
    assert with_narrower_ranges(replace(study, spec=adaptive), adaptive, keep=()) == adaptive


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
    adam, sgd = (with_narrower_ranges(study, s, keep=()).parameters["lr"] for s in divide_by_optimizer([study.spec]))
    assert adam.low < 10**-3.5 < adam.high < 1e-2 < sgd.high
    assert sgd.low > 10**-3.5


def test_the_trials_may_cut_both_ends_of_a_range_that_a_finding_cut() -> None:
    study = sweep()
    cut = study.spec.with_parameter("lr", LR.model_copy(update={"high": 0.03}))
    cut = cut.model_copy(update={"goal": "Narrow lr: 1e-5 to 0.03"})
    spec = with_narrower_ranges(study, cut, keep=[("lr", "high")])
    lr = spec.parameters["lr"]
    assert 1e-4 < lr.low < 7e-4
    assert 1e-3 < lr.high <= 0.03
    assert spec.goal == f"Narrow lr: {plain_number(lr.low)} to {plain_number(lr.high)}"


def test_the_trials_may_cut_both_ends_of_a_range_that_was_inferred() -> None:
    """The next study rounds inferred ends outwards, to 1e-5 and 0.0985; no finding widened the range for that."""
    rates = np.geomspace(1.03e-5, 9.841e-2, 17)
    costs = [[2.0, 0.3 + 0.3 * abs(np.log10(r) + 3) ** 2] for r in rates]
    study = make_study([{"lr": float(r)} for r in rates], {"val/loss": costs})
    start = initial_draft(study)
    assert start.parameters["lr"].high != study.spec.parameters["lr"].high
    cut = start.with_parameter("lr", start.parameters["lr"].model_copy(update={"low": 3e-5}))
    lr = with_narrower_ranges(study, cut, keep=[("lr", "low")]).parameters["lr"]
    assert 3e-5 <= lr.low < 1e-3
    assert 1.4e-3 < lr.high < 1e-2


@pytest.mark.parametrize(("high", "narrowed"), [(0.1, True), (0.3, False)])
def test_other_ranges_stay_if_an_end_moves_beyond_all_tried_values(high: float, narrowed: bool) -> None:
    rates = np.geomspace(1e-5, 1e-1, 20)
    temperatures = [float(2 + (7 * i) % 20) for i in range(20)]
    params = [{"lr": float(r), "temperature": t} for r, t in zip(rates, temperatures, strict=True)]
    costs = [0.3 + 0.1 * (5 - np.log10(r) - 6) ** 2 + 0.01 * (t - 18) ** 2 for r, t in zip(rates, temperatures, strict=True)]
    space = {"lr": LR, "temperature": Parameter(low=2, high=21, scale="linear")}
    study = make_study(params, {"val/loss": [[9.0, c] for c in costs]}, space=space)
    spec = study.spec.with_parameter("lr", LR.model_copy(update={"high": high}))
    other = with_narrower_ranges(study, spec, keep=[("lr", "high")]).parameters["temperature"]
    assert (other != spec.parameters["temperature"]) == narrowed


def test_a_range_that_a_finding_widened_stays() -> None:
    study = sweep()
    wider = study.spec.with_parameter("lr", LR.model_copy(update={"high": 1.0}))
    assert with_narrower_ranges(study, wider, keep=[("lr", "high")]) == wider


BATCH_SPACE = {
    "batch_size": Parameter(type="int", low=32, high=1024, scale="log"),
    "lr": Parameter(low=1e-3, high=0.05, scale="log"),
}


def batch_study(trials: Sequence[tuple[int, float, float]]) -> Study:
    """Return the study of trials (batch size, learning rate, cost)."""
    params = [{"batch_size": size, "lr": rate} for size, rate, _ in trials]
    return make_study(params, {"val/loss": [[2.0, 1.0, cost] for *_, cost in trials]}, space=BATCH_SPACE)


def of_1024(shown: Study) -> StudySpec:
    spec = initial_draft(shown).with_parameter("batch_size", Parameter(role="fixed", type="int", value=1024))
    return with_range_for_batch_size(shown, spec.model_copy(update={"goal": "Narrow lr: 0.001 to 0.05"}))


SMALL = [(32, 0.001, 0.5), (32, 0.002, 0.4), (64, 0.004, 0.5), (64, 0.03, 0.9)]


def test_the_range_reaches_half_a_decade_beyond_the_best_of_its_size_if_that_is_the_outermost() -> None:
    spec = of_1024(batch_study([*SMALL, (1024, 0.003, 0.9), (900, 0.01, 0.7), (1000, 0.04, 0.3)]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.13)
    assert spec.goal == "Search higher lr: 0.001 to 0.13"
    assert "highest" in (spec.parameters["lr"].why or "")


@pytest.mark.parametrize(
    "large",
    [
        [(1024, 0.003, 0.9), (1000, 0.04, 0.3)],
        [(1024, 0.003, 0.9), (900, 0.02, 0.3), (1000, 0.04, 0.7)],
        [(256, 0.003, 0.9), (300, 0.02, 0.7), (400, 0.04, 0.3)],
    ],
    ids=["two trials near it", "a worse one further out", "other sizes"],
)
def test_otherwise_the_range_stays(large: list[tuple[int, float, float]]) -> None:
    spec = of_1024(batch_study([*SMALL, *large]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.05)
    assert spec.goal == "Narrow lr: 0.001 to 0.05"


def test_a_better_trial_with_a_lower_rate_and_a_larger_batch_keeps_the_range() -> None:
    large = [(700, 0.003, 0.9), (900, 0.01, 0.7), (1000, 0.04, 0.3), (2048, 0.02, 0.2)]
    spec = of_1024(batch_study([*SMALL, *large]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.05)


RATE = Parameter(low=1e-4, high=1e-1, scale="log")
DECAY = Parameter(low=1e-6, high=1e-2, scale="log")
DROPOUT = AddParameter(name="dropout", parameter=Parameter(role="scientific", choices=(0.0, 0.1, 0.3), why="Trials overfit"))


def placed(best: list[float], others: list[float], **more: Any) -> Study:
    """Trials at these positions of the learning rate's range, the best ones first; equal positions are one setting."""
    rng = np.random.default_rng(0)
    places = [*best, *others]
    decays = {u: DECAY.value_at_position(float(rng.random())) for u in dict.fromkeys(places)}
    params = [{"lr": RATE.value_at_position(u), "weight_decay": decays[u]} for u in places]
    costs = [[2.0, 1.0 + 0.01 * i] for i in range(len(places))]
    return make_study(params, {"val/loss": costs}, space={"lr": RATE, "weight_decay": DECAY}, **more)


LOW, HIGH = [0.2, 0.1, 0.05, 0.9, 0.3], [0.8, 0.9, 0.95, 0.1, 0.7]
REST = [0.5, 0.4, 0.6, 0.45, 0.55, 0.35, 0.65]


@pytest.mark.parametrize(("best", "expected"), [(LOW, (3.3e-5, 0.1)), (HIGH, (1e-4, 0.3))])
def test_it_comes_before_a_comparison_of_regularisers(best: list[float], expected: Any) -> None:
    first, second = plan(placed(best, REST), [found("overfit", "regularisation", DROPOUT)]).specs
    assert first.goal.startswith("Widen lr: ")
    assert (first.parameters["lr"].low, first.parameters["lr"].high) == pytest.approx(expected)
    assert "dropout" not in first.parameters
    assert "dropout" in second.searched
    assert second.parameters["lr"].domain == first.parameters["lr"].domain


def test_a_note_on_regularisation_leads_to_no_study() -> None:
    made = plan(placed(LOW, REST), [found("overfit", "regularisation", DROPOUT, severity="note")])
    assert all("dropout" not in spec.parameters for spec in made.specs)
    assert [(d.rule, d.reason) for d in made.deferred] == [("overfit", "the problem does not make the best results worse")]


def test_a_range_that_is_cut_at_one_end_is_moved_at_the_other() -> None:
    cut = SetRange(parameter="lr", low=1e-3, high=0.1, scale="log", why="the good trials lie there")
    (spec,) = plan(placed(HIGH, REST), [found("wide", "sampling", cut, subject="lr")]).specs
    assert spec.goal == "Search higher lr: 0.001 to 0.3"


@pytest.mark.parametrize(
    "made",
    [
        placed([0.5, 0.1, 0.05, 0.2, 0.3], REST),  # the best trial lies inside
        placed([0.2, 0.1, 0.8, 0.9, 0.3], REST),  # too few of the best lie at one end
        placed(LOW, REST[:4]),  # too few trials
        placed(HIGH, [*REST, 0.99], status=["complete"] * 12 + ["diverged"]),  # rates beyond the best one fail
        placed(LOW, [*REST, 0.15, 0.12, 0.02, 0.01]),  # results get worse towards the end
        placed([0.2] * 5, [*REST, 0.42, 0.58]),  # repeats of one setting
        placed(HIGH, [*REST, 1.2]),  # a trial lies beyond the range already
        placed([0.2, 0.19, 0.18, 0.05, 0.08], REST),  # the outermost of the best are the worst of them
    ],
)
def test_the_range_stays_if_nothing_or_too_little_speaks_for_its_end(made: Study) -> None:
    assert wider_rate_range(made, made.spec) is None


def test_an_end_that_a_finding_set_stays() -> None:
    made = placed(LOW, REST)
    assert wider_rate_range(made, made.spec) is not None
    set_by_finding = made.spec.with_parameter("lr", RATE.model_copy(update={"low": 2e-4}))
    assert wider_rate_range(made, set_by_finding) is None


@pytest.mark.parametrize(("outermost", "moved"), [(0.95, False), (0.8, True)])
def test_without_other_hyperparameters_one_worse_setting_further_out_shows_the_optimum(outermost: float, moved: bool) -> None:
    places = [0.9, 0.85, 0.75, 0.7, 0.2, outermost, *REST[:5]]
    costs = [[2.0, 1.0 + 0.01 * i] for i in range(len(places))]
    made = make_study([{"lr": RATE.value_at_position(u)} for u in places], {"val/loss": costs}, space={"lr": RATE})
    assert (wider_rate_range(made, made.spec) is not None) == moved
