"""Metric values of a classifier that guesses among balanced classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_PERCENT = 1.5
"""Minimum accuracy or error rate that must be in percent."""
_RATE = re.compile(
    r"(^|[^a-z])(acc|accuracy|top_?\d+|top_?\d+_?acc(uracy)?|err|error|error_rate|top_?\d+_?err(or)?)($|[^a-z])"
)
_ENTROPY = re.compile(r"(^|[^a-z])(loss|nll|ce|xent|cross_?entropy|log_?loss|nll_loss|ce_loss)($|[^a-z])")
_PERPLEXITY = re.compile(r"(^|[^a-z])(ppl|perplexity)($|[^a-z])")
_OTHER_METRICS = re.compile("mse|mae|rmse|squared|absolute|angular|relative|pixel|recon")
"""Errors and losses that are unrelated to classes."""


def level(metric: str, classes: int, *, percent: bool = False) -> float | None:
    """Return the value of `metric` when guessing among `classes` equally frequent classes; None if the name does not identify it.

    Accuracy 1/C, error rate 1 - 1/C (within the best k: k/C), cross-entropy in nats ln C, perplexity C.
    """
    name = metric.lower()
    if _OTHER_METRICS.search(name):
        return None
    if match := _RATE.search(name):
        k = int(digits.group(1)) if (digits := re.search(r"top_?(\d+)", name)) else 1
        right = min(k / classes, 1.0)
        share = 1 - right if "err" in name[match.start() :] else right
        return 100 * share if percent else share
    if _PERPLEXITY.search(name):
        return float(classes)
    return math.log(classes) if _ENTROPY.search(name) else None


class ChanceLevels:
    """Computes the value of `contract.TAG_CHANCE`, `levels`, for the logged metrics with known names."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._percent: dict[str, bool] = {}
        self.levels: dict[str, float] = {}

    def update(self, values: Mapping[str, float]) -> bool:
        """Process an evaluation; return whether `levels` changed."""
        changed = False
        for name, value in values.items():
            percent = self._percent.get(name, False) or value > _PERCENT
            if self._percent.get(name) is percent:
                continue
            self._percent[name] = percent
            chance = level(name, self._classes, percent=percent)
            if chance is not None and self.levels.get(name) != chance:
                self.levels[name], changed = chance, True
        return changed
