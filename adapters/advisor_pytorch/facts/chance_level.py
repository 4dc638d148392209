"""Chance levels: the metric values of a classifier that guesses at random among equally frequent classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_MAX_RATE_AS_FRACTION = 1.5
"""An accuracy or error rate above this value is assumed to be in percent, because it cannot be a fraction."""
_ACCURACY_OR_ERROR_NAMES = re.compile(
    r"(^|[^a-z])(acc|accuracy|top_?\d+|top_?\d+_?acc(uracy)?|err|error|error_rate|top_?\d+_?err(or)?)($|[^a-z])"
)
_ENTROPY_NAMES = re.compile(r"(^|[^a-z])(loss|nll|ce|xent|cross_?entropy|log_?loss|nll_loss|ce_loss)($|[^a-z])")
_PERPLEXITY_NAMES = re.compile(r"(^|[^a-z])(ppl|perplexity)($|[^a-z])")
_REGRESSION_NAMES = re.compile("mse|mae|rmse|squared|absolute|angular|relative|pixel|recon")
"""Pattern that matches the names of errors and losses of tasks other than classification."""


def chance_level_of(metric: str, classes: int, *, percent: bool = False) -> float | None:
    """Return the chance level of the metric named `metric` for `classes` equally frequent classes; None if the name is not that
    of a known metric.

    For C classes: accuracy 1/C, error rate 1 - 1/C (top-k accuracy: k/C), cross-entropy ln C in nats, perplexity C.
    """
    name = metric.lower()
    if _REGRESSION_NAMES.search(name):
        return None
    if match := _ACCURACY_OR_ERROR_NAMES.search(name):
        k = int(digits.group(1)) if (digits := re.search(r"top_?(\d+)", name)) else 1
        right = min(k / classes, 1.0)
        share = 1 - right if "err" in name[match.start() :] else right
        return 100 * share if percent else share
    if _PERPLEXITY_NAMES.search(name):
        return float(classes)
    return math.log(classes) if _ENTROPY_NAMES.search(name) else None


class ChanceLevels:
    """Computes `levels`, the value of `contract.TAG_CHANCE_LEVEL`, from the logged metrics whose names are known."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._percent: dict[str, bool] = {}
        self.levels: dict[str, float] = {}

    def update(self, values: Mapping[str, float]) -> bool:
        """Update `levels` from the metric values of an evaluation; return whether `levels` changed."""
        changed = False
        for name, value in values.items():
            percent = self._percent.get(name, False) or value > _MAX_RATE_AS_FRACTION
            if self._percent.get(name) is percent:
                continue
            self._percent[name] = percent
            chance = chance_level_of(name, self._classes, percent=percent)
            if chance is not None and self.levels.get(name) != chance:
                self.levels[name], changed = chance, True
        return changed
