"""The plan `probe-early`: what follows from a look at the first steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.model.study import Study
from advisor.planning import plan

STEPS = np.arange(500)
AIM = Objective(metric="val/loss", direction="minimize")


def probe(loss: Any) -> Study:
    """One run of 500 steps at twice the best learning rate, 0.1, before a study of 10,000."""
    data = make_study(
        [{"lr": 0.2, "dropout": 0.1}],
        {"val/loss": [[float(loss[-1])]], "train/loss": [loss]},
        steps={"train/loss": [STEPS], "val/loss": [[499]]},
    )
    baseline = StudySpec(
        study="s",
        objective=AIM,
        parameters={"lr": Parameter(low=0.01, high=1.0, scale="log"), "dropout": Parameter(low=0.0, high=0.5)},
        trials=12,
        max_train_steps=10_000,
    )
    fixed = {"lr": Parameter(role="fixed", value=0.2), "dropout": Parameter(role="fixed", value=0.1)}
    spec = StudySpec(
        study="s-round-2",
        round=2,
        objective=AIM,
        parameters=fixed,
        max_train_steps=500,
        probe="early-instability",
        baseline=baseline,
    )
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


def losses(height: float) -> Any:
    noise = 0.05 * np.random.default_rng(0).normal(size=len(STEPS))
    return 2.3 * np.exp(-STEPS / 400) + 0.5 + noise + height * np.clip(STEPS / 60, 0, 1) * np.exp(-STEPS / 100)


def test_an_unstable_start_asks_for_a_warmup_of_the_baseline() -> None:
    study = probe(losses(9.0))
    (spec,) = plan(study, [verdict("stability-early", study)]).specs
    assert (spec.probe, spec.round, spec.parent) == ("warmup", 3, "s-round-2")
    assert spec.parameters["lr"].value == pytest.approx(2.0)
    assert spec.parameters["warmup_steps"].choices == (10, 50, 200, 1000)
    assert spec.parameters["dropout"].value == 0.1
    assert spec.baseline.max_train_steps == 10_000
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_stable_start_takes_the_baseline_up_again() -> None:
    study = probe(losses(0.0))
    (spec,) = plan(study, [verdict("stability-early", study)]).specs
    assert (spec.probe, spec.trials, spec.max_train_steps, spec.round) == (None, 12, 10_000, 3)
    assert spec.goal == "Resume the study that s-round-2 prepared"
    assert set(spec.searched) == {"lr", "dropout"}
