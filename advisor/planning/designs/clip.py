"""The design `clip`: clip gradients near the 90th percentile of their norms, and tune the clipping threshold.

Playbook: "Gradient clipping".

*When.* The loss jumps in the middle of training, the gradient norm has outliers, training is unstable despite clipping, or the
best learning rate is close to rates that fail. Numbers in the request: `p90` and `median` of the unclipped gradient norms,
`norms` (the number of these norms), `threshold` (the current clipping threshold, if training is unstable with it), and
`raised_from` (the current threshold, if it clips most updates).

*What.* The clipping threshold becomes a nuisance parameter of the next study, with a log range. The range lies around the 90th
percentile of the gradient norms, from their median. If training is unstable although gradients are clipped, the study searches
smaller thresholds. A threshold that clips more than half of all updates has the effect of a lower learning rate, so the low end
is never below the median norm. If a threshold that clips most updates is raised, the learning-rate range moves down, so that
updates keep their length. The high end of the new learning-rate range lies a decade above the rate that keeps this length,
because unclipped updates shrink with the gradients."""

from __future__ import annotations

import math

from advisor.model import parameter_kinds
from advisor.model.change import Change, RunPlan, SetRange
from advisor.model.learning_rate import rate_name
from advisor.model.prediction import round_significant
from advisor.model.space import MAX_FINITE_VALUE
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import searched_instead

MIN_THRESHOLD_RANGE_RATIO = 1.5
"""Minimum ratio of the norms' 90th percentile to the low end of the range, and of the current threshold to the high end."""
LOWER_THRESHOLD_RANGE_FACTOR = 3.0
"""Factor between the middle and each end of the threshold's range, if the range lies below the current threshold."""

RATE_RANGE_MARGIN_FACTOR = 10.0
"""Ratio of the high end of the new rate range to the rate at which updates are as long as the longest previous ones."""


def design(request: RunPlan, study: Study, base: StudySpec) -> tuple[Change, ...]:
    """Return the changes that search the clipping threshold and, if the threshold is raised, move the learning-rate range down."""
    numbers = request.numbers
    p90, threshold, raised_from = numbers.get("p90", math.inf), numbers.get("threshold"), numbers.get("raised_from")
    if threshold is not None:
        middle_threshold = min(p90, threshold / LOWER_THRESHOLD_RANGE_FACTOR)
        low = middle_threshold / LOWER_THRESHOLD_RANGE_FACTOR
        high = min(LOWER_THRESHOLD_RANGE_FACTOR * middle_threshold, threshold / MIN_THRESHOLD_RANGE_RATIO)
        why = f"Training was unstable with a clipping threshold of {threshold:.3g}, so search smaller ones"
    else:
        low = min(numbers["median"], p90 / MIN_THRESHOLD_RANGE_RATIO, MAX_FINITE_VALUE / MIN_THRESHOLD_RANGE_RATIO)
        high = min(p90 / round_significant(low, 3) * p90, MAX_FINITE_VALUE)
        why = f"The 90th percentile of {numbers['norms']:,.0f} unclipped gradient norms after early training is {p90:.3g}"
    name = next((n for n in base.parameters if parameter_kinds.is_clipping_threshold(n)), "grad_clip_norm")
    changes = [searched_instead(base, name, round_significant(low, 3), round_significant(high, 3), "float", why)]
    rate = rate_name(study)
    old = base.parameters.get(rate or "")
    if rate is not None and old is not None and raised_from is not None and old.low is not None and old.high is not None:
        factor = raised_from / numbers["median"]
        low = round_significant(old.low * factor, 2)
        high = round_significant(min(RATE_RANGE_MARGIN_FACTOR * old.high * factor, old.high), 2)
        why = (
            f"With most updates clipped at {raised_from:.3g}, the length of an update is the rate times this threshold. "
            f"Typical norms are {numbers['median']:.3g}, so rates {factor:.2g} times as high give updates of the same length. "
            f"The range goes up to {RATE_RANGE_MARGIN_FACTOR:g} times higher, because updates now shrink with the gradients"
        )
        changes.append(SetRange(parameter=rate, low=low, high=high, scale="log", why=why))
    return tuple(changes)
