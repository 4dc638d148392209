"""Selects values that a trainer logs in addition to the Trainer's values, such as the rewards of TRL's trainers."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

OWN_VALUES = frozenset("loss grad_norm learning_rate epoch total_flos step_time".split())
"""Values of the Trainer and of TRL that are no metrics, or that the hook also measures."""
_PREFIX = "train/"


def own_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the training metrics in a line of the trainer's log, by their names under `train/`.

    A line of an evaluation, or the summary at the end of the training, contains none.
    """
    if any(name.endswith("_runtime") for name in logs):
        return {}
    return {
        _PREFIX + name: float(value)
        for name, value in logs.items()
        if name not in OWN_VALUES and not name.startswith(("eval_", "train_", _PREFIX)) and isinstance(value, Real)
    }


def own_evaluation(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an evaluation in a line of the trainer's log, the only place where older TRL versions add metrics."""
    return {name: value for name, value in logs.items() if name.startswith("eval_")}
