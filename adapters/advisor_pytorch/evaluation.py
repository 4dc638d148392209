"""Converts the results of evaluations to values that can be logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor_logging.limits import clean_text
from advisor_pytorch.steps.device import Value, logged_value
from advisor_pytorch.validation import is_name

Refuse = Callable[[str, Exception], None]
"""Receives the name of a metric that cannot be logged, and the error."""


def check_metrics(metrics: Mapping[str, object], refuse: Refuse) -> dict[str, Value]:
    """Return the metrics that can be logged, as numbers or scalars on their device; call `refuse` for every other one.

    Raises TypeError if `metrics` is not a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to values, not {type(metrics).__name__}")
    return {name: number for name, value in metrics.items() if (number := _number(name, value, refuse)) is not None}


def _number(name: str, value: object, refuse: Refuse) -> Value | None:
    try:
        if not is_name(name):
            raise ValueError("MLflow accepts letters, digits and _ - . : / in a name")
        return logged_value(value)  # type: ignore[arg-type]  # raises for other types
    except Exception as error:
        refuse(clean_text(name), error)
        return None
