"""The rule `schedule-constant`."""

from dataclasses import replace

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Objective, StudySpec
from advisor.planning import plan

N = 100
T = np.arange(N) / N
WARMUP = np.minimum(np.arange(N) / 10, 1.0)
COSINE = 0.5 * (1 + np.cos(np.pi * T))


def study_of(shapes, *, peaks=None, costs=None, tags=None, params=None, **more):
    peaks = peaks or [0.1 * (i + 1) for i in range(len(shapes))]
    curves = {"val/loss": [[3.0, 2.0, c] for c in costs or np.linspace(1, 1.3, len(shapes))]}
    steps = {"val/loss": [[1, 50, N]] * len(shapes)}
    if any(s is not None for s in shapes):
        curves["train/learning_rate"] = [None if s is None else p * s for s, p in zip(shapes, peaks, strict=True)]
        steps["train/learning_rate"] = [np.arange(N)] * len([s for s in shapes if s is not None])
    settings = params or [{"lr": p} for p in peaks]
    return make_study(settings, curves, steps=steps, tags=tags, **more)


def with_round(study, number, schedule=None):
    spec = study.spec.model_copy(update={"round": number, "schedule": schedule})
    return replace(study, spec=spec)


def example():
    return study_of([np.ones(N), WARMUP, np.ones(N) * (1 + 1e-7 * np.arange(N))])


def test_fires_and_asks_for_a_cosine():
    study = example()
    result = verdict("schedule-constant", study)
    (finding,) = result.findings
    assert len(finding.trials) == 3
    assert (finding.severity, finding.confidence) == ("note", 0.75)
    (spec,) = plan(study, [result]).specs
    assert spec.schedule == {"kind": "cosine"}


def test_from_the_second_round_on_it_is_a_warning():
    (finding,) = verdict("schedule-constant", with_round(study_of([np.ones(N)]), 2)).findings
    assert (finding.severity, finding.confidence) == ("warning", 0.9)


@pytest.mark.parametrize("kind", ["constant", "warmup+constant"])
def test_a_noted_schedule_is_enough(kind):
    study = study_of([None, None], tags=[{"schedule": f'{{"class": "LambdaLR", "kind": "{kind}"}}'}] * 2)
    assert verdict("schedule-constant", study).status == "fired"


@pytest.mark.parametrize("value", ["constant_with_warmup", "off", "SchedulerType.CONSTANT"])
def test_so_is_a_hyperparameter_that_names_it(value):
    study = study_of([None], params=[{"lr": 0.1, "lr_scheduler_type": value}])
    assert verdict("schedule-constant", study).status == "fired"


def test_a_logged_rate_comes_before_a_noted_schedule():
    study = study_of([np.ones(N)], tags=[{"schedule": '{"class": "StepLR", "kind": "step"}'}])
    assert verdict("schedule-constant", study).status == "fired"


QUIET = {
    "cosine": study_of([COSINE, COSINE]),
    "linear after warmup": study_of([WARMUP * (1 - T)]),
    "a staircase": study_of([np.where(T < 0.8, 1, 0.1)]),
    "another trial decays": study_of([np.ones(N), np.ones(N), COSINE]),
    "slowly exponential": study_of([0.999 ** np.arange(N)]),
    "noted linear": study_of([None], tags=[{"schedule": '{"class": "LinearLR", "kind": "linear"}'}]),
    "watches a metric": study_of([np.ones(N)], tags=[{"schedule": '{"class": "x", "kind": "plateau"}'}]),
    "no schedule needed": study_of([np.ones(N)], tags=[{"optimizer": "AdamWScheduleFree"}]),
    "cyclic": study_of([0.6 + 0.4 * np.sin(20 * T)]),
}


@pytest.mark.parametrize("kind", ["constant", "constant_with_warmup"])
def test_a_constant_rate_that_the_study_file_asks_for_is_no_finding(kind):
    assert "your choice" in lacking("schedule-constant", with_round(study_of([np.ones(N)]), 1, {"kind": kind}))


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("schedule-constant", study).status == "quiet"


MISSING = {
    "nothing": study_of([None, None]),
    "a schedule of noise": study_of([None], params=[{"lr": 0.1, "beta_schedule": "linear"}]),
    "two points": make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]], "train/learning_rate": [[0.1, 0.1]]}, steps=[0, 1]),
    "warms up to the end": study_of([T + 0.01]),
    "cut short": study_of([np.ones(N)], tags=[{"max_train_steps": "1000"}]),
    "unreadable": study_of([None], tags=[{"schedule": "cosine"}]),
}


@pytest.mark.parametrize("study", MISSING.values(), ids=MISSING.keys())
def test_says_what_to_log(study):
    assert "train/learning_rate" in lacking("schedule-constant", study)


def test_bad_trials_do_not_count():
    study = study_of([COSINE, np.ones(N)], costs=[1.0, 2.9])
    assert verdict("schedule-constant", study).status == "quiet"


def test_probes_are_not_judged():
    study = study_of([np.ones(N)], tags=[{"probe": "early-instability"}])
    assert lacking("schedule-constant", study)


def test_it_keeps_its_promise():
    """Any decay that can be told from noise in the logged rate is one."""
    rng = np.random.default_rng(2)
    fired = 0
    for _ in studies(200):
        shapes = [np.where(rng.uniform(0, 0.9) > T, 1.0, rng.uniform(0, 0.97)) for _ in range(rng.integers(1, 6))]
        fired += verdict("schedule-constant", study_of(shapes)).status == "fired"
    assert fired == 0


def test_a_study_file_that_says_more_is_no_obstacle():
    spec = StudySpec(study="s", objective=Objective(metric="val/loss", direction="minimize"), schedule={"warmup_steps": 5})
    study = study_of([np.ones(N)])
    study = type(study)(**{**study.__dict__, "spec": spec.model_copy(update={"parameters": study.spec.parameters})})
    assert verdict("schedule-constant", study).status == "fired"
