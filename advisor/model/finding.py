"""Findings of rules, with their evidence and the changes that they recommend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import Field

from advisor.model.change import Advise, Change
from advisor.model.evidence import Evidence
from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField

Severity = Literal["critical", "warning", "note"]
Side = Literal["low", "high"]
Goal = Literal[
    "pipeline",
    "stability",
    "infeasible",
    "boundary",
    "sampling",
    "steps",
    "regularisation",
    "efficiency",
    "exploitation",
]
"""Topic of a finding, in the playbook's order: tuning for a goal pays off only after all goals above it are met."""


class MissingData(Exception):  # noqa: N818 - not an error: the engine turns it into a verdict
    """Raised by a rule if the study lacks required data; the message says what is missing and what to log."""


class Explanation(FrozenModel):
    """Link from a finding to the finding that caused it, see `advisor.engine.explain`."""

    rule: str
    subject: str | None = None
    side: Side | None = None
    """Side of the causing finding. Its rule, subject and side together identify it."""
    because: str
    """One sentence that explains why the finding follows from its cause."""
    waits: bool = True
    """If true, the finding's changes wait until the cause is fixed, because the fix may resolve the finding."""


class Finding(FrozenModel):
    """One result of a rule: the message, its evidence and the recommended changes."""

    rule: str
    goal: Goal
    severity: Severity
    confidence: Annotated[float, Field(ge=0, le=1)]
    """Probability that the finding is real, from the statistical test that the rule's page describes."""
    subject: str | None = None
    """Name of the hyperparameter or metric that the finding concerns."""
    side: Side | None = None
    trials: tuple[str, ...] = ()
    """Ids of the trials that support the finding."""
    message: MessageField
    """The result in one sentence, with numbers and units."""
    action: MessageField
    """The recommended action in one imperative sentence."""
    playbook: str
    """Title of the playbook section that the finding is based on."""
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    explained_by: Explanation | None = None
    """Cause of the finding; None if it does not follow from another finding."""


def by_priority(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted by playbook priority, then by severity; findings with changes precede pure advice."""
    goals, severities = get_args(Goal), get_args(Severity)

    def key(finding: Finding) -> tuple[int, int, bool, float, str]:
        only_advice = all(isinstance(c, Advise) for c in finding.changes)
        return (
            goals.index(finding.goal),
            severities.index(finding.severity),
            only_advice,
            -finding.confidence,
            finding.rule,
        )

    return sorted(findings, key=key)


class Verdict(FrozenModel):
    """The result of one rule for one study."""

    rule: str
    status: Literal["fired", "quiet", "not-assessed", "broken"]
    reason: str | None = None
    """Why the rule could not be assessed or is broken. If the rule found nothing, optionally the data that it checked."""
    findings: tuple[Finding, ...] = ()
