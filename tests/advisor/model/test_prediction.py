from __future__ import annotations

import pytest

from advisor.model.errors import AdvisorError
from advisor.model.prediction import BestBeyond, BestReaches, Prediction, Settled, ShareOfTrials, round_significant
from advisor.model.spec import Objective, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file

EXPECTED = (
    BestBeyond(parameter="learning_rate", side="high", end=0.01, than=0.42, noise=0.003),
    BestReaches(value=0.4, expected=0.37, than=0.42),
    ShareOfTrials(of="failed", at_most=0.1, was=0.4),
    ShareOfTrials(of="better", value=0.5, at_least=0.6, was=0.5),
    Settled(side="low", was="“Training is unstable: \n at 0.1”"),
)


def test_predictions_go_with_the_study_file_and_come_back_unchanged() -> None:
    made = tuple(Prediction(rule="space-boundary", subject="x", expects=e, probability=0.9) for e in EXPECTED)
    spec = StudySpec(study="s", objective=Objective(metric="loss", direction="minimize"), predictions=made)
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_prediction_that_nobody_can_judge_is_refused_with_its_line() -> None:
    text = "study: s\nobjective: {metric: loss, direction: minimize}\npredictions:\n  - rule: r\n    expects: {kind: luck}\n"
    with pytest.raises(AdvisorError, match=r"line 5, predictions\.0\.expects: .*'luck'"):
        parse_study_file(text)


@pytest.mark.parametrize(("value", "said"), [(0.123456, 0.1235), (123456.0, 123500.0), (0.0, 0.0), (-3e-9, -3e-9)])
def test_numbers_are_no_surer_than_they_can_be(value: float, said: float) -> None:
    assert round_significant(value) == said


def test_a_study_file_says_each_prediction_in_words() -> None:
    made = Prediction(rule="r", expects=BestReaches(value=0.4, expected=0.37, than=0.42), probability=0.95)
    evil = Objective(metric="loss\n- evil", direction="minimize")
    text = format_study_file(StudySpec(study="s", objective=evil, predictions=(made,)))
    assert "  # The best loss - evil is at most 0.4, most likely 0.37 (it was 0.42), 95 % likely.\n  - rule: r" in text
