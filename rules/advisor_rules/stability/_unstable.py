"""Finds the unstable trials of a study, and describes them in findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.computed.stability import instability
from advisor.computed.stability.loss_blowups import Blowup
from advisor.model.evidence import CurveEvidence, Line, Mark
from advisor.model.message import Message, say
from advisor.model.study import Trial


@dataclass(frozen=True, slots=True)
class Unstable:
    """The unstable trials among those judged."""

    near: instability.Reach
    judged: int
    blowups: tuple[Blowup, ...]
    """The instability of each unstable trial, nearest to the best trial first."""
    worst: Blowup

    @property
    def trials(self) -> list[Trial]:
        """The unstable trials."""
        return [b.trial for b in self.blowups]

    @property
    def p(self) -> float:
        """p-value of the worst instability, times the number of judged trials."""
        return min(self.worst.p * self.judged, 1.0)

    @property
    def confidence(self) -> float:
        """Probability that the worst instability is real, at most 0.99."""
        return min(1 - self.p, 0.99)

    @property
    def message(self) -> Message:
        """Sentences about the worst instability and the number of other unstable trials."""
        what = self.worst.sentence(self.near.at(self.worst.trial))
        return say("{what}.{others}", what=what, others=instability.also_in(1, len(self.blowups), self.judged))

    def curves(self, label: str, *more: str) -> CurveEvidence:
        """Return the curves of the first unstable trials, marked with `label`; more: further metrics to show."""
        shown, limit = self.blowups[:5], self.worst.limit
        return CurveEvidence(
            metrics=(self.worst.metric, *more),
            caption=say("{what}.", what=self.worst.sentence()),
            trials=tuple(b.trial.id for b in shown),
            marks=tuple(Mark(trial=b.trial.id, step=b.step, label=label) for b in shown),
            lines=(Line(value=limit, label="limit of noise"),) if math.isfinite(limit) else (),
        )


def find_unstable(
    near: instability.Reach,
    seen: Sequence[Blowup],
    *,
    false_alarms: float,
    material: float,
    severity: Callable[[Blowup], Any],
) -> Unstable | None:
    """Return the trials with material instability beyond chance; None if there are none. severity: smallest for the worst one."""
    blowups = tuple(b for b in seen if b.p * len(seen) <= false_alarms and b.share >= material)
    return Unstable(near, len(seen), blowups, min(blowups, key=severity)) if blowups else None
