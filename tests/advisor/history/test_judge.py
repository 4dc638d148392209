from __future__ import annotations

import pytest
from history_studies import round_of

from advisor.history.judge import judge_predictions
from advisor.model.finding import Finding, Verdict
from advisor.model.prediction import BestBeyond, BestNear, BestReaches, Prediction, Settled, ShareOfTrials, describe_prediction

RATES = (1e-3, 3e-3, 2e-2, 5e-2)


def judged(expects, costs, *, rates=RATES, verdict=None, **more):
    prediction = Prediction(rule="space-boundary", subject="learning_rate", expects=expects)
    study = round_of(rates, costs, low=1e-3, high=0.1, predictions=(prediction,), **more)
    (found,) = judge_predictions(study, lambda _: verdict)
    return found.judged, found.observed


BEYOND = BestBeyond(parameter="learning_rate", side="high", end=0.01, than=0.3)


def test_best_beyond():
    assert judged(BEYOND, (0.5, 0.4, 0.2, 0.25)) == (
        "kept",
        "learning_rate 0.02 gave 0.2, the best within the old range gave 0.3",
    )
    assert judged(BEYOND, (0.5, 0.4, 0.35, 0.35))[0] == "not kept"
    assert judged(BEYOND, (0.5, 0.1, 0.2, 0.25))[0] == "not kept"
    noisy = BEYOND.model_copy(update={"noise": 0.2})
    assert judged(noisy, (0.5, 0.4, 0.2, 0.25)) == (
        "not kept",
        "learning_rate 0.02 gave 0.2, the best within the old range gave 0.3; results differ between seeds by up to 0.36",
    )
    prediction = Prediction(rule="space-boundary", subject="learning_rate", expects=noisy)
    assert describe_prediction(prediction, round_of(RATES, (1, 1, 1, 1)).spec.objective).endswith(
        "better than 0.3 by more than 0.36"
    )
    none = judged(BEYOND, (0.5, 0.4), rates=(1e-3, 3e-3))
    assert none == ("cannot tell", "no trial with a result lies beyond 0.01")


def test_best_beyond_of_a_maximized_objective():
    expects = BEYOND.model_copy(update={"than": 0.7})
    assert judged(expects, (0.5, 0.6, 0.8, 0.75), direction="maximize")[0] == "kept"
    assert judged(expects, (0.5, 0.9, 0.8, 0.75), direction="maximize")[0] == "not kept"


def test_best_near():
    expects = BestNear(parameter="learning_rate", value=0.02)
    assert judged(expects, (0.5, 0.4, 0.2, 0.25)) == ("kept", "learning_rate 0.02 gave 0.2")
    assert judged(expects, (0.5, 0.1, 0.2, 0.25)) == (
        "not kept",
        "learning_rate 0.003 gave 0.1, 6.667 times lower; the best near 0.02 gave 0.2",
    )
    none = judged(expects, (0.5, 0.4), rates=(1e-3, 3e-3))
    assert none == ("cannot tell", "no trial with a result has learning_rate near 0.02")
    prediction = Prediction(rule="step-law", subject="learning_rate", expects=expects)
    said = describe_prediction(prediction, round_of(RATES, (1, 1, 1, 1)).spec.objective)
    assert said == "the best trial has learning_rate from 0.01 to 0.04, near 0.02"


def test_best_reaches():
    expects = BestReaches(value=0.3, than=0.35)
    assert judged(expects, (0.5, 0.29, 0.4, 0.4)) == ("kept", "the best is 0.29")
    assert judged(expects, (0.5, 0.31, 0.4, 0.4))[0] == "not kept"


def test_shares():
    nan, many = float("nan"), [1e-3] * 20
    fewer = ShareOfTrials(of="failed", at_most=0.1, was=0.5)
    assert judged(fewer, [0.3] * 19 + [nan], rates=many) == ("kept", "1 of 20 trials failed (5 %)")
    assert judged(fewer, [0.3] * 15 + [nan] * 5, rates=many)[0] == "not kept"
    better = ShareOfTrials(of="better", value=0.3, at_least=0.8, was=0.5)
    assert judged(better, [0.2] * 18 + [0.4] * 2, rates=many)[0] == "kept"
    assert judged(better, [0.2] * 12 + [0.4] * 8, rates=many)[0] == "not kept"


@pytest.mark.parametrize(("probability", "said"), [(0.997, "over 99 %"), (0.003, "under 1 %"), (0.91, "91 %")])
def test_no_probability_is_rounded_to_0_or_1(probability, said):
    expects = ShareOfTrials(of="failed", at_most=0.1, was=0.998)
    failing = Prediction(rule="failed-trials", expects=expects, probability=probability)
    objective = round_of(RATES, (0.3,) * 4, low=1e-3, high=0.1).spec.objective
    assert describe_prediction(failing, objective) == f"at most 10 % of the trials fail (it was over 99 %), {said} likely"


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (0.334, "the best val/loss is at most 0.35, most likely 0.334 (it was 0.3456), 90 % likely"),
        (
            0.346,
            "the best val/loss is at most 0.35 (it was 0.3456), 90 % likely; "
            "this change saves trials or steps and does not aim at a better value",
        ),
    ],
)
def test_a_change_without_a_gain_says_so(expected, said):
    expects = BestReaches(value=0.35, expected=expected, than=0.3456)
    objective = round_of(RATES, (0.3,) * 4, low=1e-3, high=0.1).spec.objective
    made = Prediction(rule="space-insensitive", expects=expects, probability=0.9)
    assert describe_prediction(made, objective) == said


def test_a_share_that_is_likely_by_chance_is_unclear():
    fewer = ShareOfTrials(of="failed", at_most=0.0, was=0.1)
    status, said = judged(fewer, [0.3] * 4)
    assert status == "cannot tell"
    assert "without any change" in said


def test_settled():
    expects = Settled(side="high", was="The best trials crowd the high end.")
    finding = Finding(
        rule="space-boundary",
        goal="boundary",
        severity="warning",
        confidence=0.9,
        subject="learning_rate",
        side="high",
        message="They do again.",
        action="Widen it.",
        playbook="",
    )
    quiet = Verdict(rule="space-boundary", status="quiet")
    assert judged(expects, (0.3,) * 4, verdict=quiet)[0] == "kept"
    fired = Verdict(rule="space-boundary", status="fired", findings=(finding,))
    assert judged(expects, (0.3,) * 4, verdict=fired) == ("not kept", "found again: They do again.")
    other = fired.model_copy(update={"findings": (finding.model_copy(update={"side": "low"}),)})
    assert judged(expects, (0.3,) * 4, verdict=other)[0] == "kept"
    unknown = Verdict(rule="space-boundary", status="not-assessed", reason="too few trials")
    assert judged(expects, (0.3,) * 4, verdict=unknown) == ("cannot tell", "too few trials")


@pytest.mark.parametrize("trials", [9, 100])
def test_a_round_with_few_ended_trials_is_unclear(trials):
    assert judged(BEYOND, (0.5, 0.4, 0.2, 0.25), trials=trials) == ("cannot tell", f"4 of its {trials} trials have ended")
