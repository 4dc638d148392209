"""Detects regularisers that every trial uses strongly: ranges without weak values or zero."""

from __future__ import annotations

import math

from advisor.model import parameter_kinds
from advisor.model.space import Domain, words_of

STRONG = 0.3
"""Smallest share of units or labels that counts as strong: dropout, label smoothing."""
STRONG_DECAY = 0.005
"""Smallest weight decay or penalty that counts as strong."""
NO_EFFECT = 1e-6
"""Weight decay that has no visible effect."""
_PENALTIES = frozenset(("l1", "l2", "wd", "weightdecay"))


def is_only_strong(name: str, domain: Domain, strong: float = STRONG, strong_decay: float = STRONG_DECAY) -> bool:
    """Return whether the hyperparameter is a regulariser with a range in which even the lowest value is strong."""
    words = set(words_of(name))
    if not parameter_kinds.is_regulariser(name) or words & {"keep", "mixup", "cutmix"}:
        return False
    low = ends(domain)[0]
    if any("drop" in word or "smoothing" in word for word in words):
        return low >= strong
    return low >= strong_decay and (bool(words & _PENALTIES) or {"weight", "decay"} <= words)


def ends(domain: Domain) -> tuple[float, float]:
    """Return the lowest and the highest value; minus infinity and infinity if some values are not numbers."""
    if domain.low is not None and domain.high is not None:
        return domain.low, domain.high
    numbers = [float(v) for v in domain.options if isinstance(v, int | float) and not isinstance(v, bool)]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(domain.options) else (-math.inf, math.inf)


def floor(domain: Domain) -> float:
    """Return the low end to search from: 0, or on a log scale a value without effect, within the declared limits."""
    low, high = ends(domain)
    return max(NO_EFFECT if domain.scale == "log" and high > 10 * low else 0.0, domain.reach[0])
