"""Marks findings that another finding causes, so that a report has one headline for each cause. Each rule declares which
findings of other rules cause its findings, or are caused by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from advisor.engine.links import causal_node, causal_ranks, find_causal_links
from advisor.engine.relation import MIN_CAUSE_CONFIDENCE, CausalLink
from advisor.engine.rule import Rule
from advisor.model.finding import Explanation, Finding, Goal, Verdict
from advisor.model.words import lower_first_letter


def explain(verdicts: Iterable[Verdict], rules: Iterable[Rule]) -> tuple[Verdict, ...]:
    """Set `explained_by` on each finding that another finding causes, and return the verdicts. If a critical finding prevents a
    rule from judging the study, and this rule found nothing, the rule counts as not assessed.

    If a finding has several causes, prefer a cause that must be fixed before the finding's changes are made. Among the
    remaining causes, prefer the one with the highest priority in planning, then the earliest one in the causal order.
    """
    verdicts = tuple(verdicts)
    findings = [f for v in verdicts for f in v.findings]
    links = find_causal_links(rules)
    order, goals = causal_ranks(links), get_args(Goal)

    def explained(effect: Finding) -> Finding:
        causes = [
            (not link.relation.waits, goals.index(cause.goal), order[causal_node(cause)], i, link, cause)
            for i, cause in enumerate(findings)
            for link in links
            if (link.cause, link.effect) == (cause.rule, effect.rule) and link.applies(effect, cause)
        ]
        if not causes:
            return effect
        *_, link, cause = min(causes, key=lambda c: c[:4])
        return effect.model_copy(update={"explained_by": _build_explanation(link, cause)})

    critical = {f.rule for f in findings if f.severity == "critical" and f.confidence >= MIN_CAUSE_CONFIDENCE}
    blind = {k.effect: k.relation.because for k in links if k.relation.blinds and k.cause in critical}

    def assessed(verdict: Verdict) -> Verdict:
        if verdict.findings:
            return verdict.model_copy(update={"findings": tuple(map(explained, verdict.findings))})
        if verdict.status == "quiet" and verdict.rule in blind:
            reason = blind[verdict.rule].rstrip(".")
            return verdict.model_copy(update={"status": "not-assessed", "reason": lower_first_letter(reason)})
        return verdict

    return tuple(map(assessed, verdicts))


def _build_explanation(link: CausalLink, cause: Finding) -> Explanation:
    return Explanation(
        rule=cause.rule, subject=cause.subject, side=cause.side, because=link.relation.because, waits=link.relation.waits
    )


def find_cause(effect: Finding, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that explains `effect`, among `findings`; None if there is none."""
    explanation = effect.explained_by
    if explanation is None:
        return None
    key = (explanation.rule, explanation.subject, explanation.side)
    return next((f for f in findings if (f.rule, f.subject, f.side) == key), None)


def find_first_cause(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the first cause in the causal chain of `finding`; return `finding` itself if no other finding explains it."""
    while (cause := find_cause(finding, findings)) is not None:
        finding = cause
    return finding
