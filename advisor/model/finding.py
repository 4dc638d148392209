"""What a rule says: findings with their evidence, and changes of the next study as typed edits."""

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
"""What a finding is about, by the playbook's priority: nothing further down is worth tuning while one further up stands."""


class MissingData(Exception):  # noqa: N818 - not an error: the engine turns it into a verdict
    """Raised by a rule that lacks the data to judge; its message says what is missing and what would have to be logged."""


class Explanation(FrozenModel):
    """Which other finding a finding follows from: that one is the cause and comes first, see `advisor.engine.explain`."""

    rule: str
    subject: str | None = None
    side: Side | None = None
    """Rule, subject and side of the finding that is the cause."""
    because: str
    """How the one follows from the other, one sentence."""
    waits: bool = True
    """Whether what the finding itself asks for waits until the cause is settled, because it may then be gone."""


class Finding(FrozenModel):
    """One thing a rule found, with what shows it and what to do about it."""

    rule: str
    goal: Goal
    severity: Severity
    confidence: Annotated[float, Field(ge=0, le=1)]
    """How sure the rule is that the finding is real, from its own test; see the rule's page."""
    subject: str | None = None
    """The hyperparameter or metric it is about."""
    side: Side | None = None
    trials: tuple[str, ...] = ()
    """Ids of the trials that show it."""
    message: MessageField
    """One sentence with numbers and units."""
    action: MessageField
    """What to do, one imperative sentence."""
    playbook: str
    """Title of the playbook's section."""
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    explained_by: Explanation | None = None
    """The finding that explains this one; None for a cause, and for what stands by itself."""


def by_priority(findings: Iterable[Finding]) -> list[Finding]:
    """The most important first: by the playbook's priorities, then severity; what changes the next study before mere advice."""
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
    """What became of one rule on one study."""

    rule: str
    status: Literal["fired", "quiet", "not-assessed", "broken"]
    reason: str | None = None
    """Why it was not assessed or what broke; for a quiet rule, what it looked at if it says so."""
    findings: tuple[Finding, ...] = ()
