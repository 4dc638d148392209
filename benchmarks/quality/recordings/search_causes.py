"""Recorded studies with a cause in the search: in its space, or in its choice of settings. See `causes`."""

from __future__ import annotations

from dataclasses import replace

from advisor.model.spec import Parameter
from recordings.recorded_study import (
    ADAM,
    CNN,
    MLP,
    SPACE,
    TAME,
    WALK,
    Label,
    RecordedStudy,
    grid,
    linear_range,
    log_range,
    must_fire,
    must_not_fire,
    repeated,
)
from recordings.training import Training

# Arguments are packed into few lines, which the formatter would undo.
# fmt: off


def space_studies() -> list[RecordedStudy]:
    low = SPACE | {"learning_rate": log_range(1e-4, 0.01)}
    high = Label("space-boundary", subject="learning_rate", side="high")
    return [
        RecordedStudy(
            "lr-range-low-mlp", "the learning rates end an order of magnitude below the best", MLP, low, (high,),
        ),
        RecordedStudy("lr-range-low-cnn", "the learning rates end below the best", CNN, low, (high,)),
        RecordedStudy(
            "lr-range-low-walk", "the learning rates end below the best",
            replace(WALK, max_train_steps=150, evaluate_every=10), ADAM | {"learning_rate": log_range(1e-5, 5e-4)}, (high,),
        ),
        RecordedStudy(
            "lr-range-high-mlp", "even the lowest learning rate is far above the best", MLP,
            TAME | {"learning_rate": log_range(0.8, 8.0)},
            (
                Label(
                    "space-boundary", subject="learning_rate", side="low",
                    accept=("space-boundary-infeasible", "stability-edge", "space-infeasible"),
                ),
            ),
        ),
        RecordedStudy(
            "decay-range-high", "even the lowest weight decay is far too strong", replace(MLP, objective="val/loss"),
            {"learning_rate": log_range(0.05, 0.3), "weight_decay": log_range(0.02, 0.5)},
            (Label("space-boundary", subject="weight_decay", side="low"),),
        ),
        RecordedStudy(
            "lr-range-wild-mlp", "learning rates up to a thousand", MLP, SPACE | {"learning_rate": log_range(0.01, 1e3)},
            must_fire(Label("space-infeasible", subject="learning_rate")),
        ),
        RecordedStudy(
            "lr-range-wild-walk", "learning rates up to one hundred with Adam",
            replace(WALK, max_train_steps=100, evaluate_every=10), ADAM | {"learning_rate": log_range(1e-3, 100.0)},
            must_fire(Label("space-infeasible", subject="learning_rate")), trials=10,
        ),
        RecordedStudy(
            "lr-range-wide", "twelve orders of magnitude of learning rates", MLP,
            SPACE | {"learning_rate": log_range(1e-12, 3.0)}, must_fire(Label("space-shrink", subject="learning_rate")), trials=24,
        ),
        RecordedStudy(
            "unused-parameter", "a hyperparameter that the training ignores", MLP,
            {"learning_rate": log_range(1e-3, 1.0), "unused": linear_range(0, 1)},
            (
                Label("space-insensitive", subject="unused"),
                Label("space-insensitive", fires=False, subject="learning_rate"),
            ),
            trials=24,
        ),
        RecordedStudy(
            "lr-times-momentum", "a learning rate and a momentum that compensate each other", MLP,
            {
                "learning_rate": log_range(1e-3, 1.0),
                "momentum": Parameter(type="categorical", choices=(0.0, 0.5, 0.9, 0.99)),
            },
            must_fire("space-interaction"), trials=32,
        ),
        RecordedStudy(
            "six-trials-four-dimensions", "six trials of four hyperparameters with extremely wide ranges",
            replace(MLP, objective="val/loss"),
            {
                "learning_rate": log_range(1e-5, 10.0), "momentum": linear_range(0.5, 0.99), "weight_decay": log_range(1e-6, 1.0),
                "dropout": linear_range(0, 0.8),
            },
            must_fire("space-undersampled"), trials=6,
        ),
        RecordedStudy(
            "steps-tuned", "the number of steps is one of the hyperparameters", MLP,
            SPACE | {"max_train_steps": Parameter(type="int", low=60, high=600, scale="log")}, must_fire("space-tuned-steps"),
        ),
        RecordedStudy(
            "batch-tuned", "the batch size is one of the hyperparameters, the learning rate is not", MLP,
            {"batch_size": Parameter(type="int", low=8, high=512, scale="log")}, must_fire("space-tuned-batch"),
        ),
        RecordedStudy(
            "optimizers-unequal", "two optimizers; all learning rates are too low for one of them", MLP,
            {
                "optimizer": Parameter(role="scientific", type="categorical", choices=("sgd", "adam")),
                "learning_rate": log_range(1e-5, 3e-3),
            },
            must_fire("unfair-comparison"), trials=24,
        ),
        RecordedStudy(
            "widths-unequal", "two widths; one was tried only with learning rates that are too low", MLP,
            {
                "width": Parameter(role="scientific", type="categorical", choices=(32, 64)),
                "learning_rate": log_range(5e-4, 0.3),
            },
            must_fire("unfair-comparison"),
            fixed=(
                *grid("learning_rate", (0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.3), width=64),
                *grid("learning_rate", (5e-4, 7e-4, 0.001, 0.0014, 0.002, 0.0028, 0.004, 0.005), width=32),
            ),
        ),
        RecordedStudy(
            "widths-equal", "two widths, tuned equally well", MLP,
            {"width": Parameter(role="scientific", type="categorical", choices=(32, 64)), **TAME},
            must_not_fire("unfair-comparison"), trials=24,
        ),
    ]


def decision_studies() -> list[RecordedStudy]:
    same = repeated({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.21, "momentum": 0.9}, times=6)
    apart = repeated({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.002, "momentum": 0.5}, times=6)
    decays, rates = (1e-6, 5e-6, 2e-5, 1e-4), (0.06, 0.08, 0.1, 0.14, 0.2, 0.3)
    few = {"learning_rate": log_range(0.001, 0.3), "momentum": linear_range(0.5, 0.9)}
    return [
        RecordedStudy(
            "configurations-alike", "two nearly equal settings, six seeds each", Training(max_train_steps=200), few,
            must_fire("adopt"), fixed=same,
        ),
        RecordedStudy(
            "configurations-apart", "a good and a bad setting, six seeds each", Training(max_train_steps=200), few,
            must_not_fire("adopt"), fixed=apart,
        ),
        RecordedStudy(
            "tuning-done", "24 equally good settings, one of them run five times", Training(max_train_steps=200),
            {"learning_rate": log_range(0.06, 0.3), "weight_decay": log_range(1e-6, 1e-4)}, must_fire("tuning-saturated"),
            fixed=(
                *({"learning_rate": rate, "weight_decay": decay} for decay in decays for rate in rates),
                *repeated({"learning_rate": 0.14, "weight_decay": 5e-6}, times=4),
            ),
        ),
        RecordedStudy(
            "tuning-begun",
            "six settings over three orders of magnitude, each better than the one before, and three repeats of the last",
            Training(max_train_steps=150), {"learning_rate": log_range(1e-4, 0.1), "weight_decay": log_range(1e-6, 1e-4)},
            must_not_fire("tuning-saturated"),
            fixed=(
                *grid("learning_rate", (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03), weight_decay=1e-5),
                *repeated({"learning_rate": 0.03, "weight_decay": 1e-5}, times=3),
            ),
        ),
    ]
