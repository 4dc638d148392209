"""Converts hyperparameters to texts for MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from advisor.contract.redact import denotes_secret
from advisor_logging.limits import clean_text


def plain_params(params: Mapping[str, object]) -> dict[str, str]:
    return {name: "***" if denotes_secret(name) else _plain_text(value) for name, value in params.items()}


def _plain_text(value: object) -> str:
    """Return a hyperparameter's value as text for MLflow; scalars of NumPy and PyTorch become plain numbers."""
    with contextlib.suppress(Exception):  # the user may have defined the value's class, so its conversion can fail
        item = getattr(value, "item", None)
        value = item() if callable(item) and getattr(value, "shape", None) == () else value
    return clean_text(value)
