"""Sentences on the predictions for the next study."""

from __future__ import annotations

from advisor.model.prediction import BestReaches, Prediction, Settled
from advisor.model.spec import Objective, StudySpec
from advisor.report.text.history import study_predictions


def test_that_a_problem_is_gone_is_not_shown_as_a_prediction() -> None:
    gone = Prediction(rule="space-shrink", expects=Settled(was="a problem"))
    better = Prediction(rule="curve-still-improving", expects=BestReaches(value=0.3, than=0.4))
    objective = Objective(metric="loss", direction="minimize")
    spec = StudySpec(study="s", objective=objective, predictions=(gone, better))
    assert study_predictions(spec) == ("the best loss is at most 0.3 (it was 0.4)",)
