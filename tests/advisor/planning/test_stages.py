"""Order of the stages of planning."""

from __future__ import annotations

import pytest
from planning_studies import found
from studies import make_study

from advisor.model.change import SetField, SetRange
from advisor.planning.stages import stage_order

STUDY = make_study([{"lr": 10.0 ** -(i + 1)} for i in range(6)], {"val/loss": [[1.0, 0.5, 0.4]] * 6})
WIDER = SetRange(parameter="lr", low=1e-6, high=1.0, scale="log", why="w")
MIN_MISMATCH_RATIO = SetField(field="max_train_steps", value=900, why="w")


@pytest.mark.parametrize(
    ("edge", "length", "goal", "first"),
    [
        (0.6, 0.95, "boundary", "steps"),
        (0.6, 0.6, "boundary", "boundary"),
        (0.9, 0.95, "boundary", "boundary"),
        (0.6, 0.95, "sampling", "boundary"),
    ],
)
def test_an_unsure_end_does_not_put_off_a_sure_length(edge: float, length: float, goal: str, first: str) -> None:
    findings = [
        found("space-boundary", goal, WIDER, severity="warning", confidence=edge).findings[0],
        found("curve-still-improving", "steps", MIN_MISMATCH_RATIO, severity="warning", confidence=length).findings[0],
    ]
    goals = [g for stage in stage_order(STUDY, findings) for g in stage]
    assert min(("boundary", "steps"), key=goals.index) == first
    assert sorted(goals) == sorted(set(goals))


@pytest.mark.parametrize(
    ("subject", "side", "confidence", "first"),
    [
        ("lr", "high", 0.6, "boundary"),
        ("lr", "high", 0.4, "steps"),
        ("lr", "low", 0.6, "steps"),
        ("dropout", "high", 0.6, "steps"),
    ],
)
def test_a_higher_learning_rate_comes_before_a_longer_training(subject: str, side: str, confidence: float, first: str) -> None:
    end = found("space-boundary", "boundary", WIDER, confidence=confidence, subject=subject, side=side).findings[0]
    longer = found("curve-still-improving", "steps", MIN_MISMATCH_RATIO, confidence=0.95).findings[0]
    goals = [g for stage in stage_order(STUDY, [end, longer]) for g in stage]
    assert min(("boundary", "steps"), key=goals.index) == first


@pytest.mark.parametrize(("severity", "last"), [("note", "regularisation"), ("warning", "exploitation")])
def test_overfitting_that_does_not_harm_the_objective_comes_last(severity: str, last: str) -> None:
    findings = found("curve-overfitting", "regularisation", severity=severity).findings
    assert stage_order(STUDY, findings)[-1] == (last,)


@pytest.mark.parametrize(
    ("severity", "confidence", "first"), [("note", 0.9, "regularisation"), ("warning", 0.9, "steps"), ("note", 0.6, "steps")]
)
def test_sure_overfitting_comes_before_notes_on_the_length(severity: str, confidence: float, first: str) -> None:
    findings = [
        found("curve-overfitting", "regularisation", severity="warning", confidence=confidence).findings[0],
        found("step-position", "steps", MIN_MISMATCH_RATIO, severity=severity).findings[0],
    ]
    goals = [g for stage in stage_order(STUDY, findings) for g in stage]
    assert min(("regularisation", "steps"), key=goals.index) == first
