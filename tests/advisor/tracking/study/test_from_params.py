import math

import pytest

from advisor.tracking.study import from_params

METRICS = ("train_loss", "eval_loss", "eval_f1", "eval_accuracy", "val/acc")


@pytest.mark.parametrize(
    ("params", "objective"),
    [
        ({"metric_for_best_model": "f1"}, "eval_f1"),
        ({"metric_for_best_model": "eval_f1"}, "eval_f1"),
        ({"early_stopping.monitor": "val/acc"}, "val/acc"),
        ({"metric_for_best_model": "loss"}, None),
        ({"objective": "reg:squarederror"}, None),
        ({"monitor": "train_f1"}, None),
        ({"best_epoch": "f1"}, None),
    ],
)
def test_the_objective_that_runs_state(params, objective):
    assert from_params.best_model_metric([params, {}], METRICS) == objective


def test_the_direction_that_runs_state():
    assert from_params.best_model_direction([{"greater_is_better": "True"}]) == "maximize"
    assert from_params.best_model_direction([{"checkpoint.mode": "min"}]) == "minimize"
    assert from_params.best_model_direction([{"mode": "fast"}]) is None


def test_planned_steps_are_believed_where_trials_end_there():
    params = [{"max_steps": 100}, {"max_steps": 200}, {"max_steps": 100}]
    assert from_params.max_train_steps(params, [99, 200, 30]) == [100, 200, 100]
    assert from_params.max_train_steps(params, [9, 9, 9]) == [None] * 3
    assert from_params.max_train_steps([{"max_steps": -1, "warmup_steps": 10}], [10]) == [None]


def test_micro_batches():
    assert from_params.micro_batches({"gradient_accumulation_steps": 4}) == 4
    assert from_params.micro_batches({"accumulate_grad_batches": 2}) == 2
    assert from_params.micro_batches({"lr": 4}) == 1


def test_the_batch_of_one_optimizer_step():
    assert from_params.batch_size({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}) == 32
    assert from_params.batch_size({"global_batch_size": 256, "batch_size": 8, "gradient_accumulation_steps": 4}) == 256
    assert math.isnan(from_params.batch_size({"lr": 0.1, "eval_batch_size": 8}))
