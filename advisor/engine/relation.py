"""Declarations of rules: the evidence for their claims, and the causal relations between findings of different rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from advisor.model.evidence import AxisEvidence
from advisor.model.finding import Finding, Severity
from advisor.model.space import is_learning_rate

SharedProperty = Literal[
    "study", "trials", "a trial", "subject", "other subject", "end", "axis", "rates", "low rates", "high rates"
]
"""The property that a finding (the effect) and the finding that causes it must have in common:

- study: nothing, because the cause concerns the whole study
- trials: at least half of the effect's trials also show the cause
- a trial: at least one of the effect's trials shows the cause
- subject: the same hyperparameter or metric, or one hyperparameter of a pair
- other subject: nothing, and the subjects of both have no hyperparameter in common
- end: the same hyperparameter and the same end of its range
- axis: the effect's subject is a hyperparameter that the cause plots as evidence
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
    """A causal relation between findings of a rule and findings of other rules, which are effects (in `Rule.explains`) or causes
    (in `Rule.explained_by`)."""

    rules: tuple[str, ...] | Literal["needs_learning"]
    """Ids of the other rules in the relation, or "needs_learning" for all rules that set `Rule.needs_learning`."""
    shares: SharedProperty = "study"
    because: str
    """Sentence that says how the effect follows from the cause; the report shows it below the effect."""
    waits: bool = True
    """True if changes for the effect must wait until the cause is fixed; False if they are useful in any case."""
    cause_at: FindingPlace | None = None
    """Place that a finding must have to be a cause; None for any place."""
    effect_at: FindingPlace | None = None
    """Place that a finding must have to be an effect; None for any place."""
    min_severity: Severity = "note"
    """Minimum severity of the cause."""
    max_severity: Severity = "critical"
    """Maximum severity of the effect."""
    blinds: bool = False
    """True if a critical cause prevents the effect's rule from judging: if this rule finds nothing, it counts as not assessed."""


@dataclass(frozen=True)
class CausalLink:
    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Return True if the finding `cause` explains the finding `effect`. Uncertain findings explain nothing."""
        places = ((self.relation.cause_at, cause), (self.relation.effect_at, effect))
        return (
            all(place in (None, finding_place(finding)) for place, finding in places)
            and cause.confidence >= MIN_CAUSE_CONFIDENCE
            and self.allows(cause.severity, effect.severity)
            and _share_property(effect, cause, self.relation.shares)
        )

    def allows(self, cause: Severity, effect: Severity) -> bool:
        """Return True if a finding of severity `cause` can explain a finding of severity `effect`."""
        rank = get_args(Severity).index  # most severe first
        is_effect_mild_enough = max(rank(cause), rank(self.relation.max_severity)) <= rank(effect)
        return is_effect_mild_enough and rank(cause) <= rank(self.relation.min_severity)


def finding_place(finding: Finding) -> FindingPlace:
    return "everywhere" if finding.subject is None else "somewhere"


def _share_property(effect: Finding, cause: Finding, shared: SharedProperty) -> bool:
    if shared == "trials":
        common_trials = set(effect.trials) & set(cause.trials)
        return bool(common_trials) and 2 * len(common_trials) >= len(set(effect.trials))
    if shared == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if shared == "subject":
        return _have_one_subject(effect, cause)
    if shared == "other subject":
        return None not in (effect.subject, cause.subject) and not _have_one_subject(effect, cause)
    if shared == "end":
        return _have_one_subject(effect, cause) and effect.side == cause.side
    if shared == "axis":
        shown_parameters = {e.parameter for e in cause.evidence if isinstance(e, AxisEvidence)}
        return bool(shown_parameters & set((effect.subject or "").split(" × ")))
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

- mechanism: the claim follows from the formula of an algorithm
- count: a number in the logs exceeds a limit by more than noise
- test: a statistical test on the study supports the claim
- literature: publications report the claim; the analysed study does not show it
"""
EVIDENCE_KIND_TEXTS: dict[EvidenceKind, str] = {
    "mechanism": "how the algorithm works",
    "count": "a number in the logs",
    "test": "a statistical test on the study",
    "literature": "the literature, without a test on the study",
}


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The evidence for the finding and for the advice of a rule, and the source of this evidence."""

    finding: EvidenceKind
    advice: EvidenceKind
    source: str
    """Papers or documentation, such as "arXiv 2309.14322"."""

    def evidence_sentence(self) -> str:
        finding, advice = EVIDENCE_KIND_TEXTS[self.finding], EVIDENCE_KIND_TEXTS[self.advice]
        return f"The finding rests on {finding}. The advice rests on {advice}. Source: {self.source}."
