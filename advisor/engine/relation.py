"""What a rule declares about itself: the evidence for its claims, and which findings of other rules it causes or explains."""

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
    """Which findings of other rules are effects (`Rule.explains`) or causes (`Rule.explained_by`) of a rule's findings."""

    rules: tuple[str, ...] | Literal["needs_learning"]
    """Ids of the other rules in the relation, or "needs_learning" for all rules that set `Rule.needs_learning`."""
    shares: SharedProperty
    because: str
    """One sentence on how the effect follows from the cause, shown below the effect."""
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
    """True if a critical cause prevents the effect's rule from judging: it then counts as not assessed if it finds nothing."""


@dataclass(frozen=True)
class CausalLink:
    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Return True if the finding `cause` explains the finding `effect`: never a more severe one, and never if it is
        uncertain."""
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
        """Return True if a finding of severity `cause` can explain one of severity `effect`."""
        order = get_args(Severity)  # most severe first
        explains = max(order.index(cause), order.index(self.relation.max_severity)) <= order.index(effect)
        return explains and order.index(cause) <= order.index(self.relation.min_severity)


def finding_place(finding: Finding) -> FindingPlace:
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


# --- evidence for claims that do not come from the Deep Learning Tuning Playbook -------------------------------------------------

EvidenceKind = Literal["mechanism", "count", "test", "literature"]
"""The kind of evidence for a claim:

- mechanism: it follows from the formula of an algorithm
- count: it is a number in the logs, compared with a limit beyond noise
- test: a statistical test on the study
- literature: publications report it; the analysed study does not show it
"""
EVIDENCE_KIND_TEXTS: dict[EvidenceKind, str] = {
    "mechanism": "how the algorithm works",
    "count": "a number in the logs",
    "test": "a statistical test on the study",
    "literature": "the literature, without a test on the study",
}


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The evidence for the finding and for the advice of a rule, and its source."""

    finding: EvidenceKind
    advice: EvidenceKind
    source: str
    """Papers or documentation, such as "arXiv 2309.14322"."""

    def evidence_sentence(self) -> str:
        finding, advice = EVIDENCE_KIND_TEXTS[self.finding], EVIDENCE_KIND_TEXTS[self.advice]
        return f"The finding rests on {finding}. The advice rests on {advice}. Source: {self.source}."
