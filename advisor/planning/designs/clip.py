"""The design `clip`: clip gradients near the 90th percentile of their norms, and tune the clipping threshold.

Playbook: "Gradient clipping".

*When.* The loss jumps in the middle of training, the gradient norm has outliers, training is unstable despite
clipping, or the best learning rate is close to rates that fail. Numbers: `p90` and `median` of the unclipped gradient
norms, `norms` (the number of these norms), and `threshold` (the current clipping threshold, if there is one).

*What.* The threshold becomes a nuisance parameter of the next study with a log range. Its low end is the median norm, but at most
two thirds of the 90th percentile; its high end is as far above the 90th percentile on the log scale. If gradients are already
clipped, smaller thresholds are tried. Clipping more than half of all updates amounts to a lower learning rate, so the low end
is never chosen below the median norm.
"""

from __future__ import annotations

import math

from advisor.model import parameter_kinds
from advisor.model.change import AddParameter, Change, RunPlan, SetRange
from advisor.model.prediction import significant
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.stats.curve import HUGE

MIN_REACH = 1.5
"""Minimum ratio of the 90th percentile to the range's low end, and of the current threshold to the range's high end."""
REACH_BELOW_THRESHOLD = 3.0
"""Ratio of each end of the range to its middle, if the range lies below the current threshold."""


def design(request: RunPlan, _study: Study, base: StudySpec) -> tuple[Change, ...]:
    """Return the change that searches the clipping threshold."""
    numbers = request.numbers
    p90, threshold = numbers.get("p90", math.inf), numbers.get("threshold")
    if threshold is not None:
        middle = min(p90, threshold / REACH_BELOW_THRESHOLD)
        low = significant(middle / REACH_BELOW_THRESHOLD, 3)
        high = significant(min(REACH_BELOW_THRESHOLD * middle, threshold / MIN_REACH), 3)
        why = f"Training was unstable with a clipping threshold of {threshold:.3g}, so search smaller ones"
    else:
        low = significant(min(numbers["median"], p90 / MIN_REACH, HUGE / MIN_REACH), 3)
        high = significant(min(p90 / low * p90, HUGE), 3)
        why = (
            f"The 90th percentile of {numbers['norms']:,.0f} unclipped gradient norms after early training is {p90:.3g}"
        )
    name = next((n for n in base.parameters if parameter_kinds.clips_norm(n)), "grad_clip_norm")
    old = base.parameters.get(name)
    if old is not None and old.searched:
        return (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
    when = old.when if old is not None else None
    new = Parameter(type="float", low=low, high=high, scale="log", role="nuisance", when=when, why=why)
    return (AddParameter(name=name, parameter=new),)
