"""schedule-ignored: trials with another learning-rate schedule than the study file's."""

from dataclasses import replace

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.change import SetSchedule
from advisor.model.spec import Parameter
from advisor.planning import plan

RULE = "schedule-ignored"
N = 100
FLAT = np.ones(N)
SHAPES = {
    "cosine": 0.5 * (1 + np.cos(np.pi * np.arange(N) / N)),
    "linear": 1 - np.arange(N) / N,
    "exponential": 0.99 ** np.arange(N),
    "constant_with_warmup": np.minimum(np.arange(1, N + 1) / 7, 1.0),
}
ASKED = {"kind": "cosine", "warmup_steps": 7}
FIXED = {"lr_scheduler_type": "constant", "warmup_steps": 0}


def study_of(shapes, asked=None, *, tags=None, lengths=None):
    """Trials whose results are better at lower rates, with the schedule that Transformers' arguments name."""
    peaks = [0.1 * 1.5**i for i in range(len(shapes))]
    curves = {"val/loss": [[3.0, 2.0, 1 + p] for p in peaks]}
    steps = {"val/loss": [[1, 50, end] for end in lengths or [N] * len(shapes)]}
    if shapes[0] is not None:
        curves["train/learning_rate"] = [p * s for p, s in zip(peaks, shapes, strict=True)]
        steps["train/learning_rate"] = [np.arange(N)] * len(shapes)
    fixed = {n: Parameter(role="fixed", value=v) for n, v in FIXED.items()}
    space = {"lr": Parameter(low=0.09, high=2.0, scale="log"), **fixed}
    study = make_study([{"lr": p, **FIXED} for p in peaks], curves, steps=steps, tags=tags, space=space)
    return replace(study, spec=study.spec.model_copy(update={"schedule": asked, "max_train_steps": N}))


def example():
    return study_of([FLAT] * 8, ASKED)


def test_a_constant_rate_although_the_study_file_asks_for_a_decay():
    (finding,) = verdict(RULE, example()).findings
    assert (finding.severity, finding.confidence, len(finding.trials)) == ("critical", 0.99, 8)
    assert "asks for the learning-rate schedule cosine, warmup_steps 7, but 8 of 8 trials do not decay" in finding.message
    assert str(finding.action).endswith("in the command: {schedule} and {schedule.warmup_steps}.")
    assert finding.changes[0].schedule == ASKED


def test_the_next_study_sets_the_schedule_together_with_its_own_changes():
    study = example()
    (alone,) = plan(study, [verdict(RULE, study)]).specs
    assert alone.goal == "Set the learning-rate schedule: cosine, warmup_steps 7"
    verdicts = [verdict(rule, study) for rule in (RULE, "space-boundary", "schedule-constant")]
    (spec,) = plan(study, verdicts).specs
    assert spec.goal.startswith("Use the schedule of the study file and search lower lr: ")
    assert spec.schedule == ASKED
    assert {n: spec.parameters[n].value for n in FIXED} == {"lr_scheduler_type": "cosine", "warmup_steps": 7}


def test_a_decay_although_the_study_file_asks_for_a_constant_rate():
    (finding,) = verdict(RULE, study_of([SHAPES["linear"]] * 3, {"kind": "constant"})).findings
    assert "3 of 3 trials decay the rate" in finding.message
    assert isinstance(finding.changes[0], SetSchedule)


def test_a_noted_schedule_counts_without_logged_rates():
    noted = [{"schedule": '{"class": "LambdaLR", "kind": "constant"}'}] * 3
    (finding,) = verdict(RULE, study_of([None] * 3, ASKED, tags=noted)).findings
    assert finding.confidence == 0.95


def test_trials_that_show_no_schedule_are_not_judged():
    study = example()
    known = {n: p for n, p in study.spec.parameters.items() if n == "lr"}
    spec = study.spec.model_copy(update={"parameters": known})
    silent = tuple(replace(t, params={"lr": t.params["lr"]}) for t in study.trials)
    without_rates = study_of([None] * 8, ASKED)
    without_rates = replace(
        without_rates, spec=spec, trials=tuple(replace(t, params={"lr": t.params["lr"]}) for t in without_rates.trials)
    )
    assert verdict(RULE, without_rates).status == "not-assessed"
    assert verdict(RULE, replace(study, spec=spec, trials=silent)).status == "fired"


def test_a_searched_schedule_need_not_follow_the_study_file():
    study = example()
    searched = {**study.spec.parameters, "lr_scheduler_type": Parameter(choices=("constant", "cosine"))}
    trials = tuple(
        replace(t, params={**t.params, "lr_scheduler_type": ("constant", "cosine")[i % 2]}) for i, t in enumerate(study.trials)
    )
    made = replace(study, trials=trials, spec=study.spec.model_copy(update={"parameters": searched}))
    assert verdict(RULE, made).status == "not-assessed"


def test_trials_that_were_cut_short_may_decay_later():
    tags = [{"max_train_steps": str(N)}] * 4
    assert verdict(RULE, study_of([FLAT] * 4, ASKED, tags=tags, lengths=[60] * 4)).status == "not-assessed"
    assert verdict(RULE, study_of([FLAT] * 4, ASKED, tags=tags, lengths=[N] * 4)).status == "fired"


@pytest.mark.parametrize("asked", [None, {"kind": "plateau"}, {"kind": "step", "steps": 200}, {"warmup_steps": 5}])
def test_schedules_that_may_be_constant_for_long_are_not_compared(asked):
    assert verdict(RULE, study_of([FLAT] * 3, asked)).status == "not-assessed"


def test_it_never_fires_if_most_trials_follow_the_study_file():
    rng = np.random.default_rng(0)
    for _ in range(100):
        kind = str(rng.choice(list(SHAPES)))
        follows = SHAPES[kind] * (1 + 1e-4 * rng.standard_normal(N))
        shapes = [follows, follows, follows, rng.choice([FLAT, SHAPES["linear"]])]
        assert verdict(RULE, study_of(shapes, {"kind": kind})).status == "quiet"
