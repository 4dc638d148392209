"""Marks findings that another finding causes, so that a report has one headline per cause. Rules declare these causal relations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from advisor.engine.links import find_links, node_of, ranks
from advisor.engine.relation import MIN_CONFIDENCE, Link
from advisor.engine.rule import Rule
from advisor.model.finding import Explanation, Finding, Goal, Verdict


def explain(verdicts: Iterable[Verdict], rules: Iterable[Rule]) -> tuple[Verdict, ...]:
    """Return the verdicts with `explained_by` set on every finding that another finding causes. Rules that found nothing, but were
    blinded by a critical finding, count as not assessed.

    If a finding has several causes, choose one: first by whether the finding's changes must wait for it, then by priority in
    planning, then by its position in the causal order (earliest first).
    """
    verdicts = tuple(verdicts)
    findings = [f for v in verdicts for f in v.findings]
    links = find_links(rules)
    order, goals = ranks(links), get_args(Goal)

    def explained(effect: Finding) -> Finding:
        causes = [
            (not link.relation.waits, goals.index(cause.goal), order[node_of(cause)], i, link, cause)
            for i, cause in enumerate(findings)
            for link in links
            if (link.cause, link.effect) == (cause.rule, effect.rule) and link.applies(effect, cause)
        ]
        if not causes:
            return effect
        *_, link, cause = min(causes, key=lambda c: c[:4])
        return effect.model_copy(update={"explained_by": _explanation(link, cause)})

    critical = {f.rule for f in findings if f.severity == "critical" and f.confidence >= MIN_CONFIDENCE}
    blind = {k.effect: k.relation.because for k in links if k.relation.blinds and k.cause in critical}

    def assessed(verdict: Verdict) -> Verdict:
        if verdict.findings:
            return verdict.model_copy(update={"findings": tuple(map(explained, verdict.findings))})
        if verdict.status == "quiet" and verdict.rule in blind:
            reason = blind[verdict.rule].rstrip(".")
            return verdict.model_copy(update={"status": "not-assessed", "reason": reason[:1].lower() + reason[1:]})
        return verdict

    return tuple(map(assessed, verdicts))


def _explanation(link: Link, cause: Finding) -> Explanation:
    return Explanation(
        rule=cause.rule,
        subject=cause.subject,
        side=cause.side,
        because=link.relation.because,
        waits=link.relation.waits,
    )


def cause_of(effect: Finding, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding in `findings` that explains `effect`; None if there is no such finding."""
    explanation = effect.explained_by
    if explanation is None:
        return None
    key = (explanation.rule, explanation.subject, explanation.side)
    return next((f for f in findings if (f.rule, f.subject, f.side) == key), None)


def first_cause(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the finding at the start of the causal chain of `finding`; this is `finding` itself if no other finding explains
    it.
    """
    while (cause := cause_of(finding, findings)) is not None:
        finding = cause
    return finding
