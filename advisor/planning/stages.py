"""The stages of planning: the goals that a study can have, in the playbook's order of priority.

Playbook: "Choosing the goal for the next round of experiments". Every study has one goal, and a stage is worth tuning only after
the stages above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.change import Advise
from advisor.model.finding import Finding, Goal
from advisor.model.space import as_number, is_learning_rate
from advisor.model.study import Study

NEAR_BEST = 2.0
"""Maximum learning rate, in multiples of the best, at which instability limits training; the playbook probes at twice the best."""

MIN_FEASIBLE = 5
"""With fewer feasible trials than this, the best one is weak evidence of where good settings lie."""


@dataclass(frozen=True)
class Stage:
    """A goal that a study can have, and the kinds of findings that call for it."""

    goals: tuple[Goal, ...]
    title: str
    """The start of the study's goal."""


_STABILITY = Stage(("stability",), "Make training stable")
_SPACE = Stage(("infeasible", "boundary", "sampling"), "Search the right space")

STAGES = (
    Stage(("pipeline",), "Fix the training pipeline"),
    _STABILITY,
    _SPACE,
    Stage(("steps",), "Train for the right number of steps"),
    Stage(("regularisation",), "Reduce overfitting"),
    Stage(("efficiency",), "Make trials more efficient"),
    Stage(("exploitation",), "Find the best setting"),
)


def in_order(study: Study, findings: Sequence[Finding]) -> Sequence[Stage]:
    """Return the stages by priority. The space comes before stability if the instability limits nothing.

    Instability matters only if it forces the learning rate too low (playbook: "Identifying unstable workloads"). It does not if the
    best trials lie at the low end of the learning rates, or if only trials far above the best learning rate are unstable. With very
    few feasible trials there is no reliable best one, so a space with more of them comes first.
    """
    wants_lower = any(f.goal == "boundary" and f.side == "low" and is_learning_rate(f.subject or "") for f in findings)
    infeasible = any(f.goal == "infeasible" and not (f.explained_by and only_advice(f)) for f in findings)
    few_feasible = infeasible and int(study.feasible.sum()) < MIN_FEASIBLE
    limits = any(f.goal == "stability" and _limits_training(study, f) for f in findings)
    if limits and not wants_lower and not few_feasible:
        return STAGES
    return [_SPACE if s is _STABILITY else _STABILITY if s is _SPACE else s for s in STAGES]


def _limits_training(study: Study, finding: Finding) -> bool:
    """Whether an unstable trial is near or below the best learning rate; True if the learning rates are unknown."""
    best = study.ranked()[:1]
    rate = next((name for name in study.searched if is_learning_rate(name) and best and name in best[0].params), None)
    if rate is None:
        return True
    limit = NEAR_BEST * as_number(best[0].params[rate])
    unstable = [t for t in study.trials if t.id in finding.trials]
    return not unstable or any(not as_number(t.params.get(rate)) > limit for t in unstable)


def only_advice(finding: Finding) -> bool:
    """Whether no study can hold what the finding asks for."""
    return all(isinstance(c, Advise) for c in finding.changes)
