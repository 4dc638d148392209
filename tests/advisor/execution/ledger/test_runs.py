import pytest

from advisor.execution.ledger.runs import RetryPolicy, missing_objective_reason


@pytest.mark.parametrize(
    ("trials", "status", "metrics", "again"),
    [
        ("silent", "infeasible", [], True),
        ("silent", "no_data", ["system/cpu", "device/memory_used_bytes"], True),
        ("silent", "no_data", ["val/error"], False),
        ("silent", "diverged", [], False),
        ("none", "infeasible", [], False),
        ("failed", "infeasible", ["val/error"], True),
        ("failed", "complete", ["val/error"], False),
        ("all", "complete", ["val/error"], True),
    ],
)
def test_failed_trials_that_are_begun_again(trials, status, metrics, again):
    assert RetryPolicy("command", trials).begins_trial_again(status, metrics) == again


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
        (["system/cpu"], None, "nor was any other metric; the training must log to the MLflow run that MLFLOW_RUN_ID"),
    ],
)
def test_a_missing_objective_is_named_beside_the_nearest_metric(metrics, stated, text):
    reason = missing_objective_reason("val/err", metrics, stated)
    assert reason.startswith("val/err was never logged")
    assert text in reason
