"""Converts the results of evaluations to values that can be logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor.contract.redact import one_line
from advisor_pytorch.steps.device import Value, read_or_copy
from advisor_pytorch.validation import is_name

Warn = Callable[[str, str], None]
"""Function that logs a one-line warning, at most once per key."""


def check_metrics(metrics: Mapping[str, object], warn: Warn) -> dict[str, Value]:
    """Return the metrics that can be logged, as numbers or as scalars on their device. Warn about all other metrics.

    Raises TypeError if `metrics` is not a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to values, not {type(metrics).__name__}")
    return {name: number for name, value in metrics.items() if (number := _number(name, value, warn)) is not None}


def _number(name: str, value: object, warn: Warn) -> Value | None:
    try:
        if not is_name(name):
            raise ValueError("MLflow accepts letters, digits and _ - . : / in a name")
        return read_or_copy(value)  # type: ignore[arg-type]  # raises for other types
    except Exception as error:
        warn(f"evaluate {name}", f"{name!r} could not be logged ({one_line(error)}); training goes on")
        return None
