"""Fewer hyperparameters for few trials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_studies import AIM, QUIET, found, only_study
from studies import make_study

from advisor.model.change import SetField, SetRange
from advisor.model.spec import Bounds, Parameter, Region, StudySpec
from advisor.model.study import Study
from advisor.planning import plan, price
from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.sampling.halton import draw_trials

NAMES = ("lr", "momentum", "dropout", "weight_decay", "label_smoothing", "grad_clip")


def study(count: int, axes: int, weight: float = 0.0) -> Study:
    rng = np.random.default_rng(1)
    space = {n: Parameter(low=0.1, high=1.0) for n in NAMES[:axes]}
    params = [{n: float(rng.uniform(0.1, 1.0)) for n in space} for _ in range(count)]
    ends = [0.4 + weight * (p[NAMES[axes - 1]] - 0.5) ** 2 + 0.01 * rng.normal() for p in params]
    data = make_study(params, {"val/loss": [[1.0, 0.5, end] for end in ends]})
    spec = StudySpec(study="s", objective=AIM, parameters=space, trials=count, max_train_steps=1000)
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


def test_twelve_trials_of_six_are_followed_by_twelve_of_two() -> None:
    made = study(12, 6)
    spec = only_study(made, *QUIET)
    assert spec.goal == "Search only lr and momentum: 12 trials cannot show the effects of 6 hyperparameters"
    assert (list(spec.searched), spec.trials, len(spec.parameters)) == (["lr", "momentum"], 12, 6)
    best = made.ranked()[0].params
    fixed = {n: p for n, p in spec.parameters.items() if p.role == "fixed"}
    assert {n: p.value for n, p in fixed.items()} == {n: best[n] for n in fixed}
    assert "12,000 steps" in price.estimate_cost(made, spec).sentence
    assert any("all 6 hyperparameters, which takes about 56 trials" in note for note in spec.notes)


def test_fewer_trials_than_tune_a_learning_rate_are_followed_by_a_search_of_it_alone() -> None:
    spec = only_study(study(8, 6), *QUIET)
    assert (list(spec.searched), spec.trials) == (["lr"], 10)


@pytest.mark.parametrize(
    ("limits", "best", "low"), [(None, 3e-3, 1e-3), (None, 2e-3, 6.7e-4), ((1e-3, 2.0), 2e-3, 1e-3), ((8e-4, 2.0), 2e-3, 8e-4)]
)
def test_few_trials_stay_below_the_rates_that_diverged(limits: tuple[float, float] | None, best: float, low: float) -> None:
    rates = [1e-3, 2e-3, 3e-3, 4e-3, 2.0]
    params = [{"lr": r, **dict.fromkeys(NAMES[1:], 0.1 * (i + 1))} for i, r in enumerate(rates)]
    ends = [0.39 if r == best else 0.4 + 0.01 * i for i, r in enumerate(rates)]
    data = make_study(params, {"val/loss": [[1.0, 0.9, end] for end in ends]}, status=[*["complete"] * 4, "diverged"])
    parameters = dict.fromkeys(NAMES, Parameter(low=0.1, high=1.0)) | {
        "lr": Parameter(low=1e-3, high=2.0, scale="log", limits=limits)
    }
    made = replace(data, spec=StudySpec(study="s", objective=AIM, parameters=parameters, max_train_steps=1000))
    rate = only_study(made, *QUIET).parameters["lr"]
    assert (rate.low, rate.high) == (low, 0.013)  # half a decade above the highest usable rate
    assert rate.why == "ends at 0.013 instead of 2: the highest rate that trained is 0.004, and the trial at 2 diverged"


def test_a_choice_with_one_usable_value_is_fixed_unless_it_was_declared() -> None:
    params = [{"lr": 1e-3 * (i + 1), "decay": 0.1 * i, "norm": 0.2 * i, "off": i == 4} for i in range(5)]
    curves = {"val/loss": [[1.0, 0.9, 0.4 + 0.05 * i] for i in range(5)]}
    inferred = make_study(params, curves, status=[*["complete"] * 4, "diverged"])
    assert "off" in inferred.searched
    assert list(only_study(inferred, *QUIET).searched) == ["lr"]
    space = {
        **dict.fromkeys(("lr", "decay", "norm"), Parameter(low=1e-3, high=1.0)),
        "off": Parameter(role="scientific", type="bool"),
    }
    declared = make_study(params, curves, status=[*["complete"] * 4, "diverged"], space=space)
    assert "off" in only_study(declared, *QUIET).searched


def test_few_trials_drop_hyperparameters_also_if_a_later_study_would_lengthen_training() -> None:
    cut = SetRange(parameter="lr", low=0.2, high=0.9, scale="linear", why="the good trials lie there")
    longer = SetField(field="max_train_steps", value=3000, why="still improving")
    wide = found("shrink", "sampling", cut)
    made = plan(study(12, 6), [*QUIET, wide, found("late", "steps", longer)])
    assert list(made.specs[0].searched) == ["lr", "momentum"]
    assert len(made.specs) == 1


def test_the_change_that_a_finding_asks_for_names_the_study() -> None:
    length = SetField(field="max_train_steps", value=3000, why="still improving")
    spec = only_study(study(12, 6), found("late", "steps", length), *QUIET)
    assert spec.goal == "Lengthen training: 1,000 to 3,000 steps"
    assert (list(spec.searched), spec.max_train_steps) == (["lr", "momentum"], 3000)


def test_the_hyperparameter_that_matters_stays_with_the_learning_rate() -> None:
    made = study(25, 6, weight=30.0)
    spec, best = only_study(made, *QUIET), made.ranked()[0].params
    assert [*spec.searched][:2] == ["lr", "momentum"]  # the third one is chosen among hyperparameters without effect
    assert len(spec.searched) == 3
    assert all(p.value == best[n] for n, p in spec.parameters.items() if p.role == "fixed")


def test_enough_trials_for_all_hyperparameters_need_no_ladder() -> None:
    assert only_study(study(9, 2), *QUIET).goal.startswith("Try ")
    assert only_study(study(30, 6), *QUIET).goal.startswith(REPEAT_GOAL)


def test_a_region_with_a_fixed_hyperparameter_stays_forbidden() -> None:
    made = study(12, 6)
    region = Region(where={"lr": Bounds(low=0.5), "dropout": Bounds(high=0.9)})
    spec = only_study(replace(made, spec=made.spec.model_copy(update={"forbidden": (region,)})), *QUIET)
    assert (list(spec.searched), spec.forbidden) == (["lr", "momentum"], (region,))
    assert all(float(trial["lr"]) < 0.5 for trial in draw_trials(spec, 50))


def test_the_learning_rate_stays_beside_compared_hyperparameters() -> None:
    made = study(12, 6)
    compared = {n: p.model_copy(update={"role": "scientific"} if n in NAMES[1:4] else {}) for n, p in made.searched.items()}
    made = replace(made, spec=made.spec.model_copy(update={"parameters": compared}))
    assert set(only_study(made, *QUIET).searched) == set(NAMES[:4])


@pytest.mark.parametrize(("best", "ends"), [(0, (3.2e-4, 1e-2)), (4, (1e-3, 0.032)), (2, (1e-3, 1e-2))])
def test_a_search_of_the_rate_alone_reaches_beyond_the_best_one_if_that_is_the_outermost(
    best: int, ends: tuple[float, float]
) -> None:
    rates = [1e-3, 2e-3, 3e-3, 5e-3, 1e-2]
    params = [{"lr": r, **dict.fromkeys(NAMES[1:], 0.1 * (i + 1))} for i, r in enumerate(rates)]
    data = make_study(params, {"val/loss": [[1.0, 0.9, 0.4 + 0.05 * abs(i - best)] for i in range(5)]})
    parameters = dict.fromkeys(NAMES, Parameter(low=0.1, high=1.0)) | {"lr": Parameter(low=1e-3, high=1e-2, scale="log")}
    made = replace(data, spec=StudySpec(study="s", objective=AIM, parameters=parameters, max_train_steps=1000))
    rate = only_study(made, *QUIET).parameters["lr"]
    assert (rate.low, rate.high) == ends


def test_momentum_is_kept_rather_than_a_limit_on_gradients() -> None:
    made = study(12, 6)
    names = dict(zip(NAMES, ("grad_clip", "lr", "dropout", "weight_decay", "label_smoothing", "momentum"), strict=True))
    params = [{names[n]: v for n, v in t.params.items()} for t in made.trials]
    ends = [float(made.costs[t.index]) for t in made.trials]
    data = make_study(params, {"val/loss": [[1.0, 0.5, end] for end in ends]})
    assert set(only_study(data, *QUIET).searched) == {"lr", "momentum"}


def test_after_pruning_the_rate_keeps_its_range_and_nothing_is_to_be_pruned() -> None:
    rates = np.geomspace(1e-4, 1e-1, 12)
    params = [{"lr": float(r), "dropout": 0.1 + 0.02 * i, "momentum": 0.9 - 0.01 * i} for i, r in enumerate(rates)]
    curves = [[1.0, 0.8 - 0.01 * i, *([0.6 - 0.01 * i] * 8 if i > 9 else [])] for i in range(12)]
    made = make_study(params, {"val/loss": curves}, status=["pruned"] * 10 + ["complete"] * 2)
    spec = only_study(made, *QUIET)
    assert list(spec.searched) == ["lr"]
    assert spec.searched["lr"].low == pytest.approx(1e-4, rel=0.02)
    assert any("without pruning" in note for note in spec.notes)
