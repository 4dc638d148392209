"""The rule `non-finite-cause`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.study import Study

STEADY = {"first": [], "before": [[step, 1.0, 1.0, 0.1, None, None] for step in range(30)], "after": []}
BATCH = {
    "batch": [{"name": "x", "bad": 3}],
    "epoch": 1,
    "number": 2,
    "following": [[{"name": "x", "max": 2.0}]],
    "history": STEADY,
}
OPERATION = {"forward_fault": {"operation": "Log", "why": "the argument is 0"}, "history": STEADY}
GROWING = [[step, 1.0, 10.0 ** max(step - 20, 0), 0.1, None, None] for step in range(30)]
RATE = {"history": {**STEADY, "before": GROWING}}
OPEN = {"history": STEADY}


def record(facts: dict[str, Any]) -> str:
    known = {"step": 30, "metric": "loss", "value": "nan", "batch": [], "parameters": {"tensors": 4}}
    return json.dumps({**known, **facts})


def study_of(*records: dict[str, Any] | str | None, failed: bool = True) -> Study:
    """Return a study of trials with rising learning rates; a trial with a record fails at step 30, if `failed`."""
    bad = [r is not None and failed for r in records]
    losses = [np.r_[np.linspace(2, 1, 29), np.nan if b else 1.0] for b in bad]
    texts = [r if isinstance(r, str) else record(r) for r in records if r is not None]
    tags = [{} if r is None else {"autopsy": texts.pop(0)} for r in records]
    return make_study(
        [{"lr": 0.001 * 2**i} for i in range(len(records))],
        {"val/loss": [[2.0, np.nan if b else 1.0 + 0.01 * i] for i, b in enumerate(bad)], "train/loss": losses},
        steps={"val/loss": [[0, 30]] * len(records), "train/loss": [np.arange(1, 31)] * len(records)},
        tags=tags,
        status=["diverged" if b else "complete" for b in bad],
    )


def example() -> Study:
    return study_of(None, BATCH, None, BATCH, None, None, None, None)


def test_a_bad_batch_explains_failures_and_is_repaired_first() -> None:
    study = example()
    verdicts = {v.rule: v for v in judge(study, load_rules())}
    (finding,) = verdicts["non-finite-cause"].findings
    assert (finding.severity, finding.trials) == ("critical", ("run1", "run3"))
    assert finding.confidence > 0.9
    assert "tensor x of step 30 (batch 2 of epoch 1, from 0) has 3 non-finite values" in finding.message
    (effect,) = verdicts["space-infeasible"].findings
    assert effect.explained_by is not None
    assert effect.explained_by.rule == "non-finite-cause"


@pytest.mark.parametrize(
    ("records", "failed", "severity"),
    [((BATCH, BATCH, None), True, "critical"), ((BATCH, *[None] * 9), True, "warning"), ((BATCH, BATCH, None), False, "note")],
)
def test_a_fault_is_critical_unless_few_trials_fail(records, failed, severity) -> None:
    assert verdict("non-finite-cause", study_of(*records, failed=failed)).findings[0].severity == severity


@pytest.mark.parametrize(
    ("records", "blamed"),
    [
        ((None, None, OPERATION), 0),  # the highest rate fails, perhaps because of the rate
        ((None, OPERATION, None), 1),  # a higher rate does not fail
        ((OPERATION, OPERATION), 2),  # no trial shows which rate does not fail
        ((None, None, BATCH), 1),  # no rate puts NaN into a batch
        ((RATE, None), 0),
        ((OPEN, None), 0),
    ],
)
def test_a_divergence_is_no_fault_of_the_code(records: tuple[dict[str, Any] | None, ...], blamed: int) -> None:
    findings = verdict("non-finite-cause", study_of(*records)).findings
    assert sum(len(f.trials) for f in findings) == blamed


def test_each_cause_is_a_finding() -> None:
    findings = verdict("non-finite-cause", study_of(BATCH, OPERATION, BATCH, None)).findings
    assert [f.trials for f in findings] == [("run0", "run2"), ("run1",)]
    assert findings[1].action == "Keep the argument of Log in range: clamp it, or add a small constant."


@pytest.mark.parametrize("text", ["true", "{", '{"step": []}', "[" * 100_000])
def test_a_damaged_record_counts_as_none(text: str) -> None:
    assert verdict("non-finite-cause", study_of(text, None)).status == "not-assessed"


@pytest.mark.parametrize(
    "facts",
    [
        {
            "parameters": {"tensors": 4, "bad": 1, "first": [{"name": "a.weight", "bad": 1}]}
        },  # without the names of the bad ones
        {"optimizers": [{"class": "SGD", "groups": [{"lr": 10**400}]}]},
        {"start": [{"name": "a", "rms": 1.0, "shape": [4, -4]}]},
    ],
)
def test_impossible_values_in_one_record_do_not_hide_the_others(facts: dict[str, Any]) -> None:
    study = study_of(facts, BATCH, None)
    assert [f.trials for f in verdict("non-finite-cause", study).findings] == [("run1",)]


def test_a_long_name_in_a_record_is_shortened() -> None:
    (finding,) = verdict("non-finite-cause", study_of({"batch": [{"name": "x" * 100_000, "bad": 3}]}, None)).findings
    assert len(finding.model_dump_json()) < 10_000
