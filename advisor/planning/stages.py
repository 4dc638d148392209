"""The goals that a study can have, in the playbook's order of priority, and when that order is another one.

Playbook: "Choosing the goal for the next round of experiments": every study has one goal. Nothing further down is worth tuning
while something further up stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.change import Advise
from advisor.model.finding import Finding, Goal
from advisor.model.space import as_number, is_learning_rate
from advisor.model.study import Study

JUST_ABOVE = 2.0
"""Learning rates up to this multiple of the best are just above it: the playbook's probe for instability is at twice the best."""

FEWEST_FEASIBLE = 5
"""Feasible trials with fewer of which the best one says little about where the best settings are."""


@dataclass(frozen=True)
class Stage:
    """A goal that a study can have, and the findings that call for it."""

    goals: tuple[Goal, ...]
    title: str
    """What the study is for, as the start of its goal."""


_STABILITY = Stage(("stability",), "Make training stable")
_SPACE = Stage(("infeasible", "boundary", "sampling"), "Search the right space")

STAGES = (
    Stage(("pipeline",), "Repair the training pipeline"),
    _STABILITY,
    _SPACE,
    Stage(("steps",), "Train for the right number of steps"),
    Stage(("regularisation",), "Reduce overfitting"),
    Stage(("efficiency",), "Get more out of each trial"),
    Stage(("exploitation",), "Find the best setting"),
)


def in_order(study: Study, findings: Sequence[Finding]) -> Sequence[Stage]:
    """The stages by priority; but the space comes before stability where the instability keeps nobody from anything.

    Instability matters only where it forces the learning rate too low (playbook: "Identifying unstable workloads"). It does not
    while the best trials crowd the low end of the learning rates, nor where only trials far above the best one's are unstable; and
    with next to no feasible trial there is no best one to speak of, so that a space with more of them comes first.
    """
    lower = any(f.goal == "boundary" and f.side == "low" and is_learning_rate(f.subject or "") for f in findings)
    region = any(f.goal == "infeasible" and not (f.explained_by and only_advice(f)) for f in findings)
    few = region and int(study.feasible.sum()) < FEWEST_FEASIBLE
    limiting = any(f.goal == "stability" and _limits(study, f) for f in findings)
    if limiting and not lower and not few:
        return STAGES
    return [_SPACE if s is _STABILITY else _STABILITY if s is _SPACE else s for s in STAGES]


def _limits(study: Study, finding: Finding) -> bool:
    """Whether the finding shows instability at, below or just above the best trial's learning rate, or knows of none."""
    best = study.ranked()[:1]
    rate = next((name for name in study.searched if is_learning_rate(name) and best and name in best[0].params), None)
    if rate is None:
        return True
    limit = JUST_ABOVE * as_number(best[0].params[rate])
    shown = [t for t in study.trials if t.id in finding.trials]
    return not shown or any(not as_number(t.params.get(rate)) > limit for t in shown)


def only_advice(finding: Finding) -> bool:
    """Whether the finding asks for nothing that a study can hold."""
    return all(isinstance(c, Advise) for c in finding.changes)
