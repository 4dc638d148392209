"""Selects the metrics that a trainer logs in addition to those of the base Trainer, such as the rewards of TRL's trainers."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

EXCLUDED_LOG_KEYS = frozenset("loss grad_norm learning_rate epoch total_flos step_time".split())
"""Names of values logged by the Trainer or TRL that are not metrics, or that the callback measures itself."""
_TRAIN_METRIC_PREFIX = "train/"


def trainer_training_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the training metrics in one entry of the trainer's log, under names `train/NAME`.

    The result is empty for entries of evaluations and for the summary at the end of the training.
    """
    if any(name.endswith("_runtime") for name in logs):
        return {}
    return {
        _TRAIN_METRIC_PREFIX + name: float(value)
        for name, value in logs.items()
        if name not in EXCLUDED_LOG_KEYS
        and not name.startswith(("eval_", "train_", _TRAIN_METRIC_PREFIX))
        and isinstance(value, Real)
    }


def evaluation_metrics(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an evaluation in one entry of the trainer's log; older TRL versions add their metrics only there."""
    return {name: value for name, value in logs.items() if name.startswith("eval_")}
