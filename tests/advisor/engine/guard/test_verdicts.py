"""Verdicts on running trials of a study."""

from dataclasses import replace

import numpy as np
import pytest

from advisor.engine.guard import running_verdicts
from advisor.engine.guard.verdicts import TrialVerdict
from advisor.model.study import Study
from tests.studies import make_study

STEPS = np.arange(1, 21) * 50
PLANNED = {"max_train_steps": "1000"}


def falling(end):
    return end + np.exp(-8 * STEPS / 1000)


def study(last, *, others=5, tags=None, running=(), metric="val/loss", **more) -> Study:
    """A study of complete trials and one more, which still runs and has the evaluations `last`."""
    curves = [falling(0.1 + 0.1 * i) for i in range(others)] + [np.asarray(last, float)]
    if more.get("direction") == "maximize":
        curves = [-c for c in curves]
    params = [{"lr": 10.0 ** -(1 + i)} for i in range(others + 1)]
    made = make_study(params, {metric: curves}, every=50, tags=tags or [PLANNED] * (others + 1), objective=metric, **more)
    return as_running(made, others, *running)


def as_running(made: Study, *indices: int) -> Study:
    return replace(made, trials=tuple(replace(t, status="running") if t.index in indices else t for t in made.trials))


def only(made: Study) -> TrialVerdict:
    return running_verdicts(made)[-1]


def test_a_trial_that_is_flat_and_far_behind_is_doomed():
    verdict = only(study([1.3, 1.2, *[1.15] * 8]))
    assert (verdict.state, verdict.stop, verdict.step, verdict.saved) == ("doomed", True, 500, 500)
    assert str(verdict.message) == (
        "trial-5 cannot become the best: after 50 % of its training its best val/loss is 1.150, and the best complete trial has "
        "0.1003. It needs a gain of 1.05. From here on, no complete trial gained more than 0.018, and at its own recent pace it "
        "would gain 0."
    )


def test_an_accuracy_is_judged_in_its_own_direction():
    verdict = only(study([1.3, 1.2, *[1.15] * 8], metric="val/accuracy", direction="maximize"))
    assert verdict.state == "doomed"
    assert "its best val/accuracy is -1.15" in str(verdict.message)


def test_a_trial_among_the_best_is_fine():
    verdict = only(study(falling(0.05)[:8]))
    assert (verdict.state, verdict.stop) == ("fine", False)


def test_two_values_that_are_not_finite_suffice_to_stop_and_one_is_only_said():
    once, twice = only(study([1.0, 0.8, np.nan])), only(study([1.0, np.nan, np.inf]))
    assert (once.state, once.stop) == ("not_finite", False)
    assert (twice.state, twice.stop) == ("not_finite", True)
    assert str(twice.message) == "val/loss of trial-5 is not finite from step 100 on."


PLATEAU = [2.0, 1.91, 2.2, 1.91, 2.2, 1.92] * 2
"""Its noise could be a slope, so the bounds do not rule the trial out."""


def test_a_trial_that_never_left_its_first_value_is_stuck():
    verdict = only(study(PLATEAU[:10], others=20))
    assert (verdict.state, verdict.stop) == ("stuck", False)
    assert str(verdict.message) == (
        "trial-20 is still where it began after 50 % of its training; 20 of 20 completed trials left their first value, the last "
        "of them after 10 %."
    )


def test_the_fewer_trials_left_their_first_value_the_longer_a_trial_may_stay_there():
    assert only(study(PLATEAU[:4], others=20)).state == "fine"
    assert only(study(PLATEAU[:10], others=12)).state == "fine"


def test_a_trial_that_loses_its_gain_is_diverging_and_is_not_stopped_for_that():
    fall = [*np.linspace(1.2, 0.15, 10), 1.1, 1.2, 1.2]
    verdict = only(study([*fall, 1.2]))
    assert (verdict.state, verdict.stop) == ("diverging", False)
    assert str(verdict.message).startswith("trial-5 lost ")
    assert only(study(fall)).state == "fine"  # three evaluations in a row must agree


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: study([1.2] * 8, others=3), "3 trials with the same length and schedule are complete; 4 are needed."),
        (
            lambda: study([1.2] * 8, tags=[{"max_train_steps": "600"}] * 6),
            "Trials train beyond the planned 600 steps, so the plan is wrong.",
        ),
        (
            lambda: study([1.2] * 8, tags=[{"max_train_steps": "2000"}] * 5 + [PLANNED]),
            "0 trials with the same length and schedule are complete; 4 are needed.",
        ),
        (
            lambda: study([1.2] * 8, tags=[PLANNED | {"schedule": '{"kind": "cosine"}'}] * 5 + [PLANNED]),
            "0 trials with the same length and schedule are complete; 4 are needed.",
        ),
    ],
)
def test_the_guard_abstains_and_says_why(made, reason):
    verdict = only(made())
    assert (verdict.state, verdict.stop, str(verdict.message)) == ("unknown", False, reason)


def test_few_evaluations_tell_nothing():
    curves = [falling(0.1 * i)[::5] for i in range(5)] + [np.full(3, 1.2)]
    made = make_study([{"lr": 10.0**-i} for i in range(6)], {"val/loss": curves}, every=250, tags=[PLANNED] * 6)
    assert str(only(as_running(made, 5)).message) == "Trials are evaluated fewer than 10 times."


def test_a_setting_with_several_seeds_is_left_alone():
    made = make_study(
        [{"lr": 10.0**-i} for i in (1, 2, 3, 4, 5, 5)],
        {"val/loss": [*(falling(0.1 * i) for i in range(5)), np.full(8, 1.2)]},
        every=50,
        tags=[PLANNED] * 6,
        seeds=[0, 0, 0, 0, 0, 1],
    )
    assert "several seeds" in str(only(as_running(made, 5)).message)


def test_evaluations_out_of_order_tell_nothing():
    times = {"val/loss": [STEPS.astype(float)] * 5 + [np.array([50, 100, 150, 20, 250, 300, 350, 400.0])]}
    verdict = only(study([1.2] * 8, times=times))
    assert str(verdict.message) == "The evaluations of trial-5 are out of order: a later step was logged earlier."


def test_running_siblings_count_for_the_best_but_not_as_complete():
    made = study([1.3, 1.2, *[1.15] * 8], others=5)
    (first, second) = running_verdicts(as_running(made, 0))
    assert first.state == "fine"
    assert second.state == "doomed"
    assert running_verdicts(as_running(made, 0, 1))[-1].state == "unknown"


def test_without_a_planned_length_nothing_can_be_told():
    made = study([1.2] * 8, tags=[{}] * 6)
    unplanned = replace(made, spec=made.spec.model_copy(update={"max_train_steps": None}))
    assert str(only(unplanned).message) == "The planned length of trial-5 is unknown: log max_train_steps."
