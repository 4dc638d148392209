import pytest

from advisor.execution.ledger.retries import Retry, missing_objective

ENDED = {"command": "old", "seen": 1.0}


@pytest.mark.parametrize(
    ("retry", "claim", "status", "metrics", "again"),
    [
        (Retry("new"), ENDED, "infeasible", [], True),
        (Retry("new"), ENDED, "no_data", ["system/cpu", "device/memory_used_bytes"], True),
        (Retry("new"), ENDED, "no_data", ["val/error"], False),
        (Retry("new"), ENDED, "diverged", [], False),
        (Retry("old"), ENDED, "infeasible", [], False),
        (Retry("new"), {"seen": 1.0}, "infeasible", [], False),
        (Retry("new"), {**ENDED, "seen": 1e12}, "infeasible", [], False),
        (Retry("old", failed=True), ENDED, "infeasible", ["val/error"], True),
        (Retry("old", failed=True), ENDED, "complete", ["val/error"], False),
    ],
)
def test_failed_trials_that_are_begun_again(retry, claim, status, metrics, again):
    """A trial that ended after the launch began is left alone, so that two launchers do not take turns forever."""
    assert retry.begins_again(claim, status, metrics) == again


@pytest.mark.parametrize(
    ("metrics", "stated", "text"),
    [
        (
            ["val/error", "train/loss", "train/loss.min"],
            None,
            "logged: train/loss, val/error: set `objective.metric: val/error`",
        ),
        (["accuracy", "loss"], "accuracy", "set `objective.metric: accuracy`"),
        ([f"m{i}" for i in range(20)], None, "m14, m15, 12 more"),
        (
            ["system/cpu"],
            None,
            "nor was any other metric of the training; it must log into the MLflow run that MLFLOW_RUN_ID",
        ),
    ],
)
def test_a_missing_objective_is_named_beside_the_nearest_metric(metrics, stated, text):
    reason = missing_objective("val/err", metrics, stated)
    assert reason.startswith("val/err was never logged")
    assert text in reason
