"""Recognises the hyperparameter that sets the length of the learning-rate warmup, and its unit."""

from __future__ import annotations

import math
from collections.abc import Iterable

from advisor.model.space import as_number
from advisor.model.spec import StudySpec


def find_warmup_parameter(names: Iterable[str]) -> str | None:
    """Return the first of `names` that denotes a warmup hyperparameter, if any."""
    return next((name for name in names if "warmup" in name.lower()), None)


def is_warmup_share(spec: StudySpec, name: str) -> bool:
    """Return True if the warmup hyperparameter `name` is a share of the training length and not a number of steps."""
    parameter = spec.parameters.get(name)
    if parameter is None:
        return False
    known_values = [parameter.high, as_number(parameter.value), *map(as_number, parameter.options)]
    return max((e for e in known_values if e is not None and math.isfinite(e)), default=math.inf) <= 1
