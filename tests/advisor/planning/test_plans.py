"""The plans that follow where the space is right: long runs, a last search, the values that are compared, batch sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from studies import make_study

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.change import Change, FixParameter, RunPlan
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.model.spec_yaml import dump, loads
from advisor.model.study import Study
from advisor.planning import REPEAT_GOAL, plan
from advisor.planning.sampling.adaptive import suggest
from advisor.planning.sampling.halton import sample

AIM = Objective(metric="val/loss", direction="minimize")
SPACE = {
    "lr": Parameter(low=1e-4, high=1e-1, scale="log"),
    "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log"),
    "width": Parameter(role="fixed", value=64),
}


def bowl(count: int = 60, centre: float = 0.5, seed: int = 0, spread: float = 1.0, **more: Any) -> Study:
    """A study whose optimum lies at `centre` of both ranges, with flat ends of curves."""
    rng = np.random.default_rng(seed)
    params, curves = [], []
    for _ in range(count):
        u = rng.random(2)
        params.append(
            {
                "lr": SPACE["lr"].from_unit(float(u[0])),
                "weight_decay": SPACE["weight_decay"].from_unit(float(u[1])),
                "width": 64,
            }
        )
        end = 0.3 + spread * ((u[0] - centre) ** 2 + 0.3 * (u[1] - centre) ** 2) + 0.002 * rng.normal()
        curves.append(end + 2 * np.exp(-np.arange(20) / 4) + 0.0005 * rng.normal(size=20))
    data = make_study(params, {"val/loss": curves})
    spec = StudySpec(study="s", objective=AIM, parameters=SPACE, trials=count, max_train_steps=2000, **more)
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


def asks(name: Any, goal: Any = "exploitation", **more: Any) -> Verdict:
    return changing(RunPlan(plan=name, why="because", **more), goal)


def changing(change: Change, goal: Any = "sampling") -> Verdict:
    found = Finding(
        rule="r",
        goal=goal,
        severity="warning",
        confidence=0.9,
        message="M.",
        action="A.",
        playbook="P",
        changes=(change,),
    )
    return Verdict(rule="r", status="fired", findings=(found,))


QUIET = tuple(Verdict(rule=r, status="quiet") for r in ("space-boundary", "space-undersampled"))


def ready_to_run(spec: StudySpec) -> None:
    """The study reads back, and its trials can be drawn."""
    assert loads(dump(spec)) == spec
    drawn = (
        suggest(spec, (), spec.trials or 1) if spec.sampler.kind == "adaptive" else list(sample(spec, spec.trials or 1))
    )
    assert len(drawn) == spec.trials


# --- exploit ----------------------------------------------------------------------------------------------------------------------


def test_where_nothing_is_left_to_learn_the_best_setting_is_searched() -> None:
    study = bowl()
    (spec,) = plan(study, QUIET).specs
    assert spec.goal.startswith("Find the best setting")
    assert spec.sampler.kind == "adaptive"
    assert {n: (p.low, p.high) for n, p in spec.searched.items()} == {
        n: (p.low, p.high) for n, p in study.searched.items()
    }
    assert any("test set, once" in note for note in spec.notes)
    assert (spec.trials, spec.parameters["width"].value) == (60, 64)
    ready_to_run(spec)


def test_by_the_rules_themselves() -> None:
    study = bowl(spread=0.05)
    verdicts = judge(study, load_rules(settings={}))
    specs = plan(study, verdicts).specs
    assert any(s.sampler.kind == "adaptive" for s in specs), [
        (v.rule, v.findings[0].message) for v in verdicts if v.findings
    ]
    for spec in specs:
        ready_to_run(spec)


@pytest.mark.parametrize(
    "verdicts",
    [
        QUIET[:1],
        (*QUIET[:1], Verdict(rule="space-undersampled", status="not-assessed")),
        (*QUIET, Verdict(rule="stability-mid", status="fired")),
    ],
)
def test_it_waits_until_exploration_is_done(verdicts: Any) -> None:
    assert plan(bowl(), verdicts).specs[0].goal == REPEAT_GOAL


def test_it_waits_while_the_best_trial_lies_at_an_end() -> None:
    assert plan(bowl(centre=1.0), QUIET).specs[0].goal == REPEAT_GOAL


def test_an_end_beyond_which_nothing_is_possible_is_none_to_wait_for() -> None:
    study = bowl(centre=1.0)
    shut = {n: p.model_copy(update={"limits": (None, p.high)}) for n, p in study.searched.items() if p.numeric}
    (spec,) = plan(replace(study, spec=study.spec.model_copy(update={"parameters": shut})), QUIET).specs
    assert spec.sampler.kind == "adaptive"
    assert {n: p.domain for n, p in spec.parameters.items()} == {n: p.domain for n, p in shut.items()}
    ready_to_run(spec)


def test_while_few_settings_cannot_tell_whether_it_lies_beyond_the_end_more_are_tried() -> None:
    few = bowl(8, centre=1.0)
    (spec,) = plan(few, QUIET).specs
    assert (spec.goal, spec.trials) == ("Search the right space: 4 more trials", 4)
    assert {n: p.domain for n, p in spec.searched.items()} == {n: p.domain for n, p in few.searched.items()}
    ready_to_run(spec)
    assert plan(bowl(8), QUIET).specs[0].sampler.kind == "adaptive"
    assert plan(few, QUIET[1:]).specs[0].goal == REPEAT_GOAL


def test_it_searches_again_what_was_fixed_because_it_hardly_mattered() -> None:
    study = bowl()
    fix = FixParameter(parameter="weight_decay", value=1e-4, why="It hardly matters.", for_now=True)
    (spec,) = plan(study, [*QUIET, changing(fix)]).specs
    assert spec.parameters["weight_decay"].searched_in == SPACE["weight_decay"].domain
    ready_to_run(spec)
    fixed = {**SPACE, "weight_decay": spec.parameters["weight_decay"]}
    (last,) = plan(replace(study, spec=study.spec.model_copy(update={"parameters": fixed})), QUIET).specs
    assert last.sampler.kind == "adaptive"
    assert last.parameters["weight_decay"].domain == SPACE["weight_decay"].domain
    assert "width" not in last.searched
    ready_to_run(last)


def test_after_it_comes_no_second_one() -> None:
    study = bowl(sampler=Sampler(kind="adaptive"))
    assert plan(study, QUIET).specs[0].goal == REPEAT_GOAL
    made = plan(study, [asks("exploit")])
    assert made.specs[0].goal == REPEAT_GOAL
    assert any("test set, once" in note for note in made.specs[0].notes)


# --- rounds -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ({"kind": "linear"}, {"kind": "linear", "decay_steps": 2000, "constant_steps": 18_000}),
        (
            {"kind": "linear", "warmup_steps": 200},
            {"kind": "linear", "warmup_steps": 200, "decay_steps": 1800, "constant_steps": 18_000},
        ),
        ({"kind": "cosine"}, {"kind": "cosine"}),
        (None, None),
    ],
)
def test_very_few_long_runs_carry_the_schedule_over(schedule: Any, wanted: Any) -> None:
    study = bowl(final_train_steps=20_000, schedule=schedule)
    (spec,) = plan(study, [asks("rounds", "steps")]).specs
    assert (spec.max_train_steps, spec.trials, spec.final_train_steps) == (20_000, 3, None)
    assert spec.schedule == wanted
    best = study.ranked()[0].params
    assert set(spec.searched) == {"lr"}
    assert spec.parameters["lr"].low < best["lr"] < spec.parameters["lr"].high  # type: ignore[operator]
    assert spec.parameters["weight_decay"].value == best["weight_decay"]
    assert "might transfer" in (spec.parameters["weight_decay"].why or "")
    assert "likely to transfer" in (spec.parameters["width"].why or "")
    ready_to_run(spec)


def test_long_runs_cost_no_more_than_the_round_before() -> None:
    study = bowl(count=12, final_train_steps=20_000)
    (spec,) = plan(study, [asks("rounds", "steps")]).specs
    assert (spec.trials, set(spec.searched)) == (1, set())
    ready_to_run(spec)


def test_long_runs_take_one_seed_each() -> None:
    (spec,) = plan(bowl(final_train_steps=20_000, seeds=5), [asks("rounds", "steps")]).specs
    assert (spec.trials, spec.seeds) == (3, None)


def test_without_the_final_length_it_is_asked_for() -> None:
    made = plan(bowl(), [asks("rounds", "steps")])
    assert any("final_train_steps" in note for note in made.specs[0].notes)


def test_short_runs_with_nothing_left_to_change_are_followed_by_long_ones() -> None:
    assert plan(bowl(final_train_steps=20_000), []).specs[0].max_train_steps == 20_000


# --- batch sizes ----------------------------------------------------------------------------------------------------------------


def test_a_sweep_of_batch_sizes_prepares_the_study() -> None:
    study = bowl()
    space = {**SPACE, "batch_size": Parameter(role="fixed", value=64)}
    study = Study(spec=study.spec.model_copy(update={"parameters": space}), trials=study.trials, metrics=study.metrics)
    (spec,) = plan(study, [asks("batch-sweep", "efficiency", numbers={"from": 64.0})]).specs
    assert spec.probe == "batch-size"
    assert sorted(t["batch_size"] for t in sample(spec, 8)) == [64 * 2**i for i in range(8)]
    assert spec.baseline is not None
    assert spec.baseline.parameters["batch_size"].value == 64
    assert any("batch_size_sweep" in note for note in spec.notes)
    ready_to_run(spec)


# --- after a re-parametrisation -----------------------------------------------------------------------------------------------


def reparametrised(**more: Any) -> Study:
    """Trials that logged a learning rate and a momentum, of a study that now searches lr / (1 - momentum)."""
    rng = np.random.default_rng(0)
    params = [{"lr": 10.0 ** rng.uniform(-4, -1), "momentum": rng.uniform(0.5, 0.95)} for _ in range(30)]
    ends = [0.3 + (np.log10(p["lr"] / (1 - p["momentum"])) + 1) ** 2 for p in params]
    data = make_study(params, {"val/loss": [end + 2 * np.exp(-np.arange(20) / 4) for end in ends]})
    space = {
        "lr": Parameter(role="derived", formula="effective_lr * (1 - momentum)"),
        "momentum": Parameter(low=0.5, high=0.95),
        "effective_lr": Parameter(low=1e-4, high=2.0, scale="log", equals="lr / (1 - momentum)"),
        "batch_size": Parameter(role="fixed", value=64),
    }
    spec = StudySpec(study="s", objective=AIM, parameters=space, trials=30, max_train_steps=2000, **more)
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


def test_long_runs_differ_in_a_learning_rate_that_is_computed() -> None:
    study = reparametrised(final_train_steps=20_000)
    (spec,) = plan(study, [asks("rounds", "steps")]).specs
    assert set(spec.searched) == {"effective_lr"}
    trials = list(sample(spec, 3))
    assert len({t["lr"] for t in trials}) == 3
    assert all(t["lr"] == pytest.approx(t["effective_lr"] * (1 - t["momentum"])) for t in trials)
    ready_to_run(spec)


@pytest.mark.parametrize(
    ("name", "numbers", "times"),
    [
        ("probe-early", {}, 2.0),
        ("warmup", {"unstable_learning_rate": 0.3, "times": 10.0}, None),
        ("batch-sweep", {}, 1.0),
    ],
)
def test_probes_train_with_the_learning_rate_that_they_ask_for(name: str, numbers: Any, times: float | None) -> None:
    study = reparametrised()
    best = study.ranked()[0].params
    (spec,) = plan(study, [asks(name, "stability", numbers=numbers)]).specs
    wanted = 3.0 * (1 - float(best["momentum"])) if times is None else times * float(best["lr"])
    for trial in sample(spec, spec.trials or 1):
        assert trial["lr"] == pytest.approx(wanted, rel=0.01)
    ready_to_run(spec)


# --- what a probe's trials are drawn by -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "adaptive"])
@pytest.mark.parametrize("steps", [40, 20_000])
def test_a_probe_trains_each_choice_once_however_the_study_was_drawn(kind: Any, steps: int) -> None:
    """With 40 steps there are three warmups to try, with 20,000 four."""
    study = bowl(sampler=Sampler(kind=kind, seed=1))
    study = Study(
        spec=study.spec.model_copy(update={"max_train_steps": steps}), trials=study.trials, metrics=study.metrics
    )
    numbers = {"unstable_learning_rate": 0.3, "times": 10.0}
    (spec,) = plan(study, [asks("warmup", "stability", numbers=numbers)]).specs
    lengths = spec.parameters["warmup_steps"].choices
    assert lengths is not None
    assert sorted(int(t["warmup_steps"]) for t in sample(spec, spec.trials or 0)) == list(lengths)
    assert spec.baseline is not None
    assert spec.baseline.sampler.kind == kind
    ready_to_run(spec)
