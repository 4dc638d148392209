"""Declares that findings of one rule cause findings of another rule. A report shows a cause as a headline, and the effects of
this cause below the headline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from advisor.model.evidence import AxisEvidence
from advisor.model.finding import Finding, Severity
from advisor.model.space import is_learning_rate

SharedProperty = Literal["study", "trials", "a trial", "subject", "end", "axis", "rates", "low rates", "high rates"]
"""The property that a finding and its cause must have in common:

- study: nothing, because the cause concerns the whole study
- trials: at least half of the effect's trials also show the cause
- a trial: at least one of the effect's trials shows the cause
- subject: the same hyperparameter or metric, or one hyperparameter of a pair
- end: the same hyperparameter and the same end of its range
- axis: the effect's subject is a hyperparameter whose axis the cause shows as evidence
- rates: the effect concerns a learning rate
- low rates, high rates: the cause concerns the low or the high end of a learning rate, and the effect does not concern low
  rates only
"""

FindingPlace = Literal["somewhere", "everywhere"]
""""somewhere" if a finding has a subject in the search space, "everywhere" if it concerns the whole space."""

MIN_CAUSE_CONFIDENCE = 0.5
"""Minimum confidence of a finding that may explain other findings."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Declares which findings of other rules are effects or causes of a rule's findings. A rule declares effects in its
    attribute `explains` and causes in `explained_by`."""

    rules: tuple[str, ...] | Literal["needs_learning"]
    """Ids of the other rules in the relation, or "needs_learning" for all rules that set `Rule.needs_learning`."""
    shares: SharedProperty
    because: str
    """One sentence that explains how the effect follows from the cause; it is shown below the effect."""
    waits: bool = True
    """True if changes for the effect must wait until the cause is fixed; False if they help to fix the cause or are useful in
    any case."""
    cause_at: FindingPlace | None = None
    """Place that a finding must have to be a cause; None for any place."""
    effect_at: FindingPlace | None = None
    """Place that a finding must have to be an effect; None for any place."""
    min_severity: Severity = "note"
    """Minimum severity of the cause."""
    max_severity: Severity = "critical"
    """Maximum severity of the effect."""
    blinds: bool = False
    """True if a critical cause prevents the effect's rule from judging the study, so that the rule counts as not assessed if it
    finds nothing."""


@dataclass(frozen=True)
class CausalLink:
    """A causal relation from one rule (the cause) to another rule (the effect)."""

    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Return True if the finding `cause` explains the finding `effect` in this relation. A finding never explains a more
        severe finding, and an uncertain finding explains no other finding."""
        fits = all(
            place is None or place == finding_place(finding)
            for place, finding in ((self.relation.cause_at, cause), (self.relation.effect_at, effect))
        )
        return (
            fits
            and cause.confidence >= MIN_CAUSE_CONFIDENCE
            and self.allows(cause.severity, effect.severity)
            and _share_property(effect, cause, self.relation.shares)
        )

    def allows(self, cause: Severity, effect: Severity) -> bool:
        """Return True if a finding of severity `cause` can explain a finding of severity `effect`."""
        order = get_args(Severity)  # most severe first
        explains = max(order.index(cause), order.index(self.relation.max_severity)) <= order.index(effect)
        return explains and order.index(cause) <= order.index(self.relation.min_severity)


def finding_place(finding: Finding) -> FindingPlace:
    """Return "somewhere" if the subject of the finding is a hyperparameter of the search space, else "everywhere"."""
    return "everywhere" if finding.subject is None else "somewhere"


def _share_property(effect: Finding, cause: Finding, shared: SharedProperty) -> bool:
    if shared == "trials":
        both = set(effect.trials) & set(cause.trials)
        return bool(both) and 2 * len(both) >= len(set(effect.trials))
    if shared == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if shared == "subject":
        return _have_one_subject(effect, cause)
    if shared == "end":
        return _have_one_subject(effect, cause) and effect.side == cause.side
    if shared == "axis":
        axes = {e.parameter for e in cause.evidence if isinstance(e, AxisEvidence)}
        return bool(axes & set((effect.subject or "").split(" × ")))
    if shared == "rates":
        return is_learning_rate(effect.subject or "")
    if shared in ("low rates", "high rates"):
        return is_learning_rate(cause.subject or "") and cause.side == shared.partition(" ")[0] and effect.side != "low"
    return True


def _have_one_subject(effect: Finding, cause: Finding) -> bool:
    if effect.subject is None or cause.subject is None:
        return False
    return bool(set(effect.subject.split(" × ")) & set(cause.subject.split(" × ")))
