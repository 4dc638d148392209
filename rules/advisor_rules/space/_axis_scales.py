"""The other scale on which a hyperparameter could have been searched."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.computed.space.settings import Settings
from advisor.model.space import Domain, FloatArray, as_number, counts_training, hard_limits
from advisor.model.study import Study

FEWEST_VALUES = 5
"""Distinct values of a hyperparameter below which no scale fits better than another."""


@dataclass(frozen=True)
class OtherScale:
    """A searched number, and the range that it would have on the other scale."""

    name: str
    domain: Domain
    positions: FloatArray
    """Shape (settings,): where the settings lie in that range; NaN where one has no value, below 0 where it lies below."""


def read(study: Study, tried: Settings, span: float) -> list[OtherScale]:
    """The searched numbers whose range spans at least this ratio, other than the length of the training.

    A range that starts at 0 does so where the hyperparameter must be positive: it is then cut at the decade of the smallest value
    that was tried.
    """
    found = []
    for name, used in tried.numeric.items():
        if counts_training(name) or len(np.unique(used[np.isfinite(used)])) < FEWEST_VALUES:
            continue
        values = np.array([as_number(group[0].params.get(name)) for group in tried.trials])
        domain = study.spec.parameters[name]
        if domain.scale == "reverse-log":  # nobody chooses it by default, so that there is no slip to tell of
            continue
        low, high = domain.low or 0.0, domain.high or 0.0
        positive = values[values > 0]
        if low == 0 and hard_limits(name, domain.type)[0] == 0 and len(positive):
            low = 10.0 ** math.floor(math.log10(positive.min()))
        if low > 0 and high >= span * low:
            other = Domain(type=domain.type, low=low, high=high, scale="linear" if domain.scale == "log" else "log")
            found.append(OtherScale(name, other, other.to_unit(values)))
    return found
