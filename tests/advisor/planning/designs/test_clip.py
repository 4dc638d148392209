"""Tests of the design `clip`."""

from __future__ import annotations

import pytest
from studies import make_study

from advisor.model.change import AddParameter, RunPlan, SetRange
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.planning.designs.clip import RATE_RANGE_MARGIN_FACTOR, design

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.01, high=1.0, scale="log")},
    trials=12,
)
STUDY = make_study([{"lr": 0.1}], {"val/loss": [[1.0]]})
NORMS = {"p90": 2.0, "median": 1.0, "norms": 500.0}


def test_raising_a_threshold_that_clipped_most_updates_lowers_the_rates_in_proportion() -> None:
    changes = design(RunPlan(plan="clip", numbers={**NORMS, "raised_from": 0.001}, why="w"), STUDY, SPEC)
    threshold, rate = changes
    assert isinstance(threshold, AddParameter)
    assert isinstance(rate, SetRange)
    assert rate.low == pytest.approx(1e-5)
    assert rate.high == pytest.approx(RATE_RANGE_MARGIN_FACTOR * 1e-3)


def test_a_new_threshold_leaves_the_rates_alone() -> None:
    (threshold,) = design(RunPlan(plan="clip", numbers=NORMS, why="w"), STUDY, SPEC)
    assert isinstance(threshold, AddParameter)
    assert threshold.name == "grad_clip_norm"
