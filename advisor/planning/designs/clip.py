"""The plan `clip`: clip gradients at the 90th percentile of their norms, and tune the threshold around it.

Playbook: "Gradient clipping".

*What calls for it.* A loss that jumps in mid training (`stability-mid`), outliers of the gradient norm (`stability-spikes`),
clipping that left training unstable (`clip-insufficient`), or a learning rate at the edge of what trains (`stability-edge`).
Numbers: `p90` and `median` of the unclipped gradient norms, `norms` how many there are, `threshold` the one in force, if any.

*What it does.* The threshold is one more nuisance parameter of the next study, on a log scale around the 90th percentile: from
the typical norm (the median, at most two thirds of the percentile) to as far above the percentile. Where a threshold was in force
and training still unstable, thresholds below it, around the percentile if that is lower. More than half of all updates clipped is
a lower learning rate in disguise (`clip-aggressive`), so the range never starts below the typical norm by choice.
"""

from __future__ import annotations

import math

from advisor.model import parameter_kinds
from advisor.model.change import AddParameter, Change, RunPlan, SetRange
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import digits
from advisor.stats.curve import HUGE

BELOW = 1.5
"""How far below the 90th percentile, or the threshold in force, the range reaches at least."""
HARDER = 3.0
"""How far around the middle of smaller thresholds the range reaches."""


def design(ask: RunPlan, _study: Study, base: StudySpec) -> tuple[Change, ...]:
    """The threshold as a parameter to search."""
    numbers = ask.numbers
    tenth, threshold = numbers.get("p90", math.inf), numbers.get("threshold")
    if threshold is not None:
        middle = min(tenth, threshold / HARDER)
        low, high = digits(middle / HARDER), digits(min(HARDER * middle, threshold / BELOW))
        why = f"Clipping at {threshold:.3g} left training unstable, so smaller thresholds are tried"
    else:
        low = digits(min(numbers["median"], tenth / BELOW, HUGE / BELOW))
        high = digits(min(tenth / low * tenth, HUGE))
        why = (
            f"Clip near {tenth:.3g}, the 90th percentile of the {numbers['norms']:,.0f} unclipped gradient norms logged after "
            "early training"
        )
    name = next((n for n in base.parameters if parameter_kinds.clips_norm(n)), "grad_clip_norm")
    old = base.parameters.get(name)
    if old is not None and old.searched:
        return (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
    when = old.when if old is not None else None
    new = Parameter(type="float", low=low, high=high, scale="log", role="nuisance", when=when, why=why)
    return (AddParameter(name=name, parameter=new),)
