"""Detects regularisers that are strong in every trial, because their range contains neither weak values nor zero."""

from __future__ import annotations

import math

from advisor.model import parameter_kinds
from advisor.model.optimizers import optimizer_name
from advisor.model.space import Domain, words_of_name
from advisor.model.study import Study

MIN_STRONG_DROPOUT = 0.3
"""Minimum strength of dropout or label smoothing that counts as strong, as the share of dropped units or smoothed labels."""
MIN_STRONG_WEIGHT_DECAY = 0.3
"""Minimum weight decay or penalty that counts as strong; weight decays of 0.1 are usual with AdamW."""
MIN_STRONG_SGD_DECAY = 0.01
"""Minimum weight decay that counts as strong with SGD, where weight decay acts through the gradient."""
MAX_INEFFECTIVE_WEIGHT_DECAY = 1e-6
_WEIGHT_PENALTY_WORDS = frozenset(("l1", "l2", "wd", "weightdecay"))


def has_only_strong_values(
    name: str, domain: Domain, strong: float = MIN_STRONG_DROPOUT, strong_decay: float = MIN_STRONG_WEIGHT_DECAY
) -> bool:
    """Return True if the hyperparameter is a regulariser with a range in which even the lowest value is strong."""
    words = set(words_of_name(name))
    if not parameter_kinds.is_regulariser(name) or words & {"keep", "mixup", "cutmix"}:
        return False
    low = lowest_and_highest(domain)[0]
    if any("drop" in word or "smoothing" in word for word in words):
        return low >= strong
    return low >= strong_decay and (bool(words & _WEIGHT_PENALTY_WORDS) or {"weight", "decay"} <= words)


def strong_decay(study: Study, otherwise: float = MIN_STRONG_WEIGHT_DECAY, sgd: float = MIN_STRONG_SGD_DECAY) -> float:
    """Return the minimum weight decay that counts as strong: `sgd` if all trials are known to use SGD, else `otherwise`."""
    rules = {optimizer_name(t.params, t.facts).lower().rsplit(".", 1)[-1] for t in study.trials}
    return sgd if rules and rules <= {"sgd", "momentum", "nesterov"} else otherwise


def lowest_and_highest(domain: Domain) -> tuple[float, float]:
    """Return the lowest and the highest value; (-inf, inf) if some values are not numbers."""
    if domain.low is not None and domain.high is not None:
        return domain.low, domain.high
    numbers = [float(v) for v in domain.options if isinstance(v, int | float) and not isinstance(v, bool)]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(domain.options) else (-math.inf, math.inf)


def weakest_searchable_value(domain: Domain) -> float:
    """Return the low end of the range to search: 0, or a value without effect on a log scale, within the declared limits."""
    low, high = lowest_and_highest(domain)
    return max(MAX_INEFFECTIVE_WEIGHT_DECAY if domain.scale == "log" and high > 10 * low else 0.0, domain.declared_limits[0])


def off_value_below(name: str, domain: Domain) -> float | None:
    """Return the value below the range that switches the regulariser off; None if there is none, or the range has weak
    values."""
    lowest = weakest_searchable_value(domain)
    return lowest if has_only_strong_values(name, domain) and lowest == 0 < lowest_and_highest(domain)[0] else None
