"""Relations between rules: which findings follow from which. A report shows the cause as the headline and its effects below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from advisor.model.finding import Finding, Severity
from advisor.model.space import is_learning_rate

Shared = Literal["study", "trials", "a trial", "subject", "end", "rates", "low rates", "high rates"]
"""What cause and effect must have in common:

- study: nothing, the cause concerns the whole study
- trials: at least half of the effect's trials show the cause; a trial: at least one does
- subject: the same hyperparameter or metric, or either one of a pair; end: the same subject and side
- rates: the effect is about a learning rate; low rates, high rates: the cause is about that end of a learning rate
"""

Place = Literal["somewhere", "everywhere"]
"""Whether a finding names a place in the search space (it has a subject) or concerns all of it."""

MIN_CONFIDENCE = 0.5
"""Minimum confidence of a finding that explains others."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Causes and effects that a rule declares in `explains` (its effects) or `explained_by` (its causes)."""

    rules: tuple[str, ...]
    """Ids of the rules on the other side."""
    shares: Shared
    because: str
    """How the effect follows from the cause: one sentence, shown below the effect."""
    waits: bool = True
    """Whether the effect's changes wait until the cause is settled. False if they are part of its cure or useful in any case."""
    cause_at: Place | None = None
    """Restricts the causes to those with, or without, a place in the space."""
    effect_at: Place | None = None
    """Restricts the effects likewise."""
    min_severity: Severity = "note"
    """Minimum severity of the cause."""
    max_severity: Severity = "critical"
    """Maximum severity of the effect."""


@dataclass(frozen=True)
class Link:
    """One cause and one effect of a relation."""

    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Return whether this effect follows from this cause. A note or a doubtful finding never explains a graver one."""
        fits = all(
            place is None or place == place_of(finding)
            for place, finding in ((self.relation.cause_at, cause), (self.relation.effect_at, effect))
        )
        return (
            fits
            and cause.confidence >= MIN_CONFIDENCE
            and self.allows(cause.severity, effect.severity)
            and _share(effect, cause, self.relation.shares)
        )

    def allows(self, cause: Severity, effect: Severity) -> bool:
        """Return whether a cause of one severity can explain an effect of another."""
        order = get_args(Severity)  # the gravest first
        explains = max(order.index(cause), order.index(self.relation.max_severity)) <= order.index(effect)
        return explains and order.index(cause) <= order.index(self.relation.min_severity)


def place_of(finding: Finding) -> Place:
    """Return whether the finding names a place in the search space."""
    return "everywhere" if finding.subject is None else "somewhere"


def _share(effect: Finding, cause: Finding, what: Shared) -> bool:
    if what == "trials":
        both = set(effect.trials) & set(cause.trials)
        return bool(both) and 2 * len(both) >= len(set(effect.trials))
    if what == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if what == "subject":
        return _one_subject(effect, cause)
    if what == "end":
        return _one_subject(effect, cause) and effect.side == cause.side
    if what == "rates":
        return is_learning_rate(effect.subject or "")
    if what in ("low rates", "high rates"):
        return is_learning_rate(cause.subject or "") and cause.side == what.partition(" ")[0]
    return True


def _one_subject(effect: Finding, cause: Finding) -> bool:
    if effect.subject is None or cause.subject is None:
        return False
    return bool(set(effect.subject.split(" × ")) & set(cause.subject.split(" × ")))
