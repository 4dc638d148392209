"""Marks findings that another finding causes, so that a report has one headline for each cause.

Rules declare causal links to other rules, which form a directed graph without cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import TypeAlias, get_args

from advisor.engine.relation import MIN_CAUSE_CONFIDENCE, CausalLink, FindingPlace, Relation, finding_place
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Explanation, Finding, Goal, Severity, Verdict
from advisor.model.words import lower_first_letter

FindingGroup: TypeAlias = tuple[str, FindingPlace, Severity]
"""All findings of one rule with the same severity and place ("somewhere" or "everywhere")."""


def explain(verdicts: Iterable[Verdict], rules: Iterable[Rule]) -> tuple[Verdict, ...]:
    """Return the verdicts, with `explained_by` set on each finding that another finding causes. If a critical finding prevents a
    rule from judging the study, and this rule found nothing, the rule counts as not assessed.

    Of several causes, prefer a cause that must be fixed before the finding's changes are made, then the cause with the highest
    priority in planning, then the first cause in the causal order.
    """
    verdicts = tuple(verdicts)
    findings = [f for v in verdicts for f in v.findings]
    causal_links = find_causal_links(rules)
    order, goals = causal_order(causal_links), get_args(Goal)

    def with_explanation(effect: Finding) -> Finding:
        causes = [
            (
                not link.relation.waits,
                goals.index(cause.goal),
                order[cause.rule, finding_place(cause), cause.severity],
                i,
                link,
                cause,
            )
            for i, cause in enumerate(findings)
            for link in causal_links
            if (link.cause, link.effect) == (cause.rule, effect.rule) and link.applies(effect, cause)
        ]
        if not causes:
            return effect
        *_, link, cause = min(causes, key=lambda c: c[:4])
        because, waits = link.relation.because, link.relation.waits
        explanation = Explanation(rule=cause.rule, subject=cause.subject, side=cause.side, because=because, waits=waits)
        return effect.model_copy(update={"explained_by": explanation})

    critical_rules = {f.rule for f in findings if f.severity == "critical" and f.confidence >= MIN_CAUSE_CONFIDENCE}
    reasons = {k.effect: k.relation.because for k in causal_links if k.relation.blinds and k.cause in critical_rules}

    def with_causes(verdict: Verdict) -> Verdict:
        if verdict.findings:
            return verdict.model_copy(update={"findings": tuple(map(with_explanation, verdict.findings))})
        if verdict.status == "quiet" and verdict.rule in reasons:
            reason = reasons[verdict.rule].rstrip(".")
            return verdict.model_copy(update={"status": "not-assessed", "reason": lower_first_letter(reason)})
        return verdict

    return tuple(map(with_causes, verdicts))


def find_cause(effect: Finding, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that explains `effect`, if it is among `findings`."""
    explanation = effect.explained_by
    if explanation is None:
        return None
    key = (explanation.rule, explanation.subject, explanation.side)
    return next((f for f in findings if (f.rule, f.subject, f.side) == key), None)


def find_first_cause(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the first cause in the causal chain of `finding`, or `finding` itself."""
    while (cause := find_cause(finding, findings)) is not None:
        finding = cause
    return finding


def find_causal_links(rules: Iterable[Rule]) -> tuple[CausalLink, ...]:
    """Return all causal links between these rules, declared by the cause or by the effect."""
    rules = tuple(rules)
    known_ids = {rule.rule_id() for rule in rules}
    return tuple(link for link in _declared_links(rules) if link.cause in known_ids and link.effect in known_ids)


@lru_cache(maxsize=8)
def causal_order(links: tuple[CausalLink, ...]) -> Mapping[FindingGroup, int]:
    """Return the rank of each group of findings in an order with causes before effects. Raises CycleError if links form a cycle."""
    sorter: TopologicalSorter[FindingGroup] = TopologicalSorter()
    for link in links:
        cause_and_effect_places = link.relation.cause_at, link.relation.effect_at
        place_pairs = product(*(get_args(FindingPlace) if place is None else (place,) for place in cause_and_effect_places))
        for (at_cause, at_effect), cause, effect in product(place_pairs, get_args(Severity), get_args(Severity)):
            if link.allows(cause, effect):
                sorter.add((link.effect, at_effect, effect), (link.cause, at_cause, cause))
    return {node: rank for rank, node in enumerate(sorter.static_order())}


def check_relations(rules: Iterable[Rule]) -> None:
    """Raise AdvisorError if a relation names a rule that does not exist, or if the relations form a cycle."""
    rules = tuple(rules)
    known_ids = {rule.rule_id() for rule in rules}
    for link in _declared_links(rules):
        for rule, other in ((link.cause, link.effect), (link.effect, link.cause)):
            if rule not in known_ids:
                lack = f"{rule!r}, which does not exist; `advisor rules` lists all rules"
                raise AdvisorError(f"the rule {other!r} has a relation to {lack}")
    try:
        causal_order(find_causal_links(rules))
    except CycleError as error:
        cycle_text = " → ".join(dict.fromkeys(node[0] for node in reversed(error.args[1])))
        raise AdvisorError(f"these rules explain each other in a circle: {cycle_text}; drop one of the relations") from None


def _declared_links(rules: Iterable[Rule]) -> Iterator[CausalLink]:
    rules = tuple(rules)
    ids_needing_learning = tuple(rule.rule_id() for rule in rules if rule.needs_learning)
    for rule in rules:
        own = rule.rule_id()
        for relations, explains in ((rule.explains, True), (rule.explained_by, False)):
            for relation in (relations,) if isinstance(relations, Relation) else relations:
                for other in ids_needing_learning if relation.rules == "needs_learning" else relation.rules:
                    yield CausalLink(own, other, relation) if explains else CausalLink(other, own, relation)
