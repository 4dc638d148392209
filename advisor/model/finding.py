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
"""What a finding is about, in the playbook's order: a goal is worth tuning only after the goals above it."""


class MissingData(Exception):  # noqa: N818 - not an error: the engine turns it into a verdict
    """Raised by a rule that lacks data; its message says what is missing and what to log."""


class Explanation(FrozenModel):
    """The cause that a finding follows from, see `advisor.engine.explain`."""

    rule: str
    subject: str | None = None
    side: Side | None = None
    """Rule, subject and side identify the cause."""
    because: str
    """Why the finding follows from the cause: one sentence."""
    waits: bool = True
    """Whether the finding's changes wait until the cause is fixed, because the finding may then be gone."""


class Finding(FrozenModel):
    """One result of a rule: the message, the evidence and what to do."""

    rule: str
    goal: Goal
    severity: Severity
    confidence: Annotated[float, Field(ge=0, le=1)]
    """Probability that the finding is real, from the rule's own test; see the rule's page."""
    subject: str | None = None
    """The hyperparameter or metric that the finding is about."""
    side: Side | None = None
    trials: tuple[str, ...] = ()
    """Ids of the trials that show it."""
    message: MessageField
    """One sentence with numbers and units."""
    action: MessageField
    """One imperative sentence."""
    playbook: str
    """Title of the playbook section."""
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    explained_by: Explanation | None = None
    """The cause; None if the finding does not follow from another one."""


def by_priority(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted by the playbook's priorities, then severity, then changes before mere advice."""
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
    """The result of one rule on one study."""

    rule: str
    status: Literal["fired", "quiet", "not-assessed", "broken"]
    reason: str | None = None
    """Why the rule was not assessed or is broken; for a quiet rule, optionally what it looked at."""
    findings: tuple[Finding, ...] = ()
