"""A trainer's own metrics: which values of a log line are metrics of the training, and which of an evaluation."""

from __future__ import annotations

from advisor_transformers.trainer_metrics import evaluation_metrics, trainer_training_metrics


def test_values_beyond_the_trainers_own_are_metrics_of_the_training() -> None:
    line = {"loss": 1.0, "grad_norm": 2.0, "learning_rate": 1e-3, "epoch": 0.5, "reward": 3, "rewards/margins": 0.25}
    assert trainer_training_metrics(line) == {"train/reward": 3.0, "train/rewards/margins": 0.25}


def test_values_that_are_no_numbers_and_summaries_are_left_out() -> None:
    line = {
        "kl": None,
        "note": "text",
        "train_runtime": 3.0,
        "train_loss": 0.1,
        "total_flos": 1e9,
        "train/loss": 0.3,
        "eval_loss": 1.0,
    }
    assert trainer_training_metrics(line) == {}
    assert trainer_training_metrics({"train_runtime": 3.0, "reward": 1.0}) == {}
    assert trainer_training_metrics({"test_loss": 1.0, "test_runtime": 2.0}) == {}, "an evaluation with a prefix of its own"
    assert evaluation_metrics(line) == {"eval_loss": 1.0}
