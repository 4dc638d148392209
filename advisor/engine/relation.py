"""Causal relations between the findings of rules. A report shows the cause as the headline and its effects below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from advisor.model.evidence import AxisEvidence
from advisor.model.finding import Finding, Severity
from advisor.model.space import is_learning_rate

Shared = Literal["study", "trials", "a trial", "subject", "end", "axis", "rates", "low rates", "high rates"]
"""The property that cause and effect must have in common:

- study: nothing, because the cause concerns the whole study
- trials: at least half of the effect's trials also show the cause
- a trial: at least one of the effect's trials shows the cause
- subject: the same hyperparameter or metric, or one hyperparameter of a pair
- end: the same subject and the same side of its range
- axis: the effect's subject is a hyperparameter whose axis the cause shows as evidence
- rates: the effect concerns a learning rate
- low rates, high rates: the cause concerns the low or the high end of a learning rate, and the effect does not concern low rates
only
"""

Place = Literal["somewhere", "everywhere"]
"""Place of a finding: "somewhere" if it has a subject in the search space, "everywhere" if it concerns the whole space."""

MIN_CONFIDENCE = 0.5
"""Minimum confidence of a finding that may explain other findings."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Effects or causes of a rule's findings. The rule declares effects in its attribute `explains` and causes in
    `explained_by`.
    """

    rules: tuple[str, ...]
    """Ids of the rules on the other side of the relation."""
    shares: Shared
    because: str
    """One sentence that explains how the effect follows from the cause; it is shown below the effect."""
    waits: bool = True
    """True if the effect's changes must wait until the cause is fixed; False if these changes help to fix the cause or are useful
    in any case.
    """
    cause_at: Place | None = None
    """If set, only findings with this `Place` can be the cause."""
    effect_at: Place | None = None
    """If set, only findings with this `Place` can be the effect."""
    min_severity: Severity = "note"
    """Minimum severity of the cause."""
    max_severity: Severity = "critical"
    """Maximum severity of the effect."""
    blinds: bool = False
    """True if the effect's rule can judge nothing in a study with a critical cause, so that it has not passed if it finds nothing.
    """


@dataclass(frozen=True)
class Link:
    """A causal relation between two rules: the rule of the cause and the rule of the effect."""

    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Return True if `cause` explains `effect` in this relation. A less severe or uncertain finding never explains a more
        severe finding.
        """
        fits = all(
            place is None or place == place_of(finding)
            for place, finding in ((self.relation.cause_at, cause), (self.relation.effect_at, effect))
        )
        return (
            fits
            and cause.confidence >= MIN_CONFIDENCE
            and self.allows(cause.severity, effect.severity)
            and _have_in_common(effect, cause, self.relation.shares)
        )

    def allows(self, cause: Severity, effect: Severity) -> bool:
        """Return True if a finding of severity `cause` can explain a finding of severity `effect`."""
        order = get_args(Severity)  # most severe first
        explains = max(order.index(cause), order.index(self.relation.max_severity)) <= order.index(effect)
        return explains and order.index(cause) <= order.index(self.relation.min_severity)


def place_of(finding: Finding) -> Place:
    """Return where the finding applies: "somewhere" if its subject is a hyperparameter of the search space, else "everywhere"."""
    return "everywhere" if finding.subject is None else "somewhere"


def _have_in_common(effect: Finding, cause: Finding, shared: Shared) -> bool:
    if shared == "trials":
        both = set(effect.trials) & set(cause.trials)
        return bool(both) and 2 * len(both) >= len(set(effect.trials))
    if shared == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if shared == "subject":
        return _one_subject(effect, cause)
    if shared == "end":
        return _one_subject(effect, cause) and effect.side == cause.side
    if shared == "axis":
        axes = {e.parameter for e in cause.evidence if isinstance(e, AxisEvidence)}
        return bool(axes & set((effect.subject or "").split(" × ")))
    if shared == "rates":
        return is_learning_rate(effect.subject or "")
    if shared in ("low rates", "high rates"):
        return is_learning_rate(cause.subject or "") and cause.side == shared.partition(" ")[0] and effect.side != "low"
    return True


def _one_subject(effect: Finding, cause: Finding) -> bool:
    if effect.subject is None or cause.subject is None:
        return False
    return bool(set(effect.subject.split(" × ")) & set(cause.subject.split(" × ")))
