"""When trials are evaluated: at regular steps, by the clock, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.model.study import Study, Trial
from advisor_rules.pipeline._rhythm import Rhythm, rhythm


@dataclass(frozen=True, slots=True)
class Timing:
    """When one trial was evaluated."""

    trial: Trial
    steps: Rhythm
    seconds: Rhythm | None
    """None where the times are unknown."""

    def irregular(self, most: float) -> bool:
        """Whether more than a share `most` of the intervals are off, in steps.

        Intervals that grow or shrink all along follow a plan, unless they follow the clock.
        """
        return self.steps.off > most and (self.by_clock or not self.steps.one_way)

    @property
    def by_clock(self) -> bool:
        """Whether the intervals are the more regular in seconds.

        A loop that counts steps takes as irregular a time as its number of steps is; the other way round only a clock does it.
        """
        return self.seconds is not None and self.seconds.usual > 0 and self.seconds.off <= self.steps.off / 2


def timings(study: Study, tolerance: float) -> list[Timing]:
    """The timings of the trials whose evaluations of the objective are enough to tell.

    tolerance: difference from the usual interval that is none, as a share of it.
    """
    found = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = rhythm(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            found.append(Timing(trial, steps, rhythm(curve.times, tolerance)))
    return found
