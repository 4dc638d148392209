"""Builds a directed graph without cycles from the causal links that rules declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import TypeAlias, get_args

from advisor.engine.relation import CausalLink, FindingPlace, Relation, finding_place
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, Severity

CausalNode: TypeAlias = tuple[str, FindingPlace, Severity]
"""A node of the causal graph: all findings of one rule that have the same severity and the same place ("somewhere" or
"everywhere")."""


def causal_node(finding: Finding) -> CausalNode:
    return finding.rule, finding_place(finding), finding.severity


def find_causal_links(rules: Iterable[Rule]) -> tuple[CausalLink, ...]:
    """Return all causal links between these rules. A link may be declared by the rule of the cause or by the rule of the effect."""
    rules = tuple(rules)
    known_ids = {rule.rule_id() for rule in rules}
    return tuple(link for link in _declared_links(rules) if link.cause in known_ids and link.effect in known_ids)


@lru_cache(maxsize=8)
def causal_ranks(links: tuple[CausalLink, ...]) -> Mapping[CausalNode, int]:
    """Return the rank of each node of the causal graph, with causes before effects. Raises CycleError if the links form a
    cycle."""
    sorter: TopologicalSorter[CausalNode] = TopologicalSorter()
    for link in links:
        places = product(_allowed_places(link.relation.cause_at), _allowed_places(link.relation.effect_at))
        for (at_cause, at_effect), cause, effect in product(places, get_args(Severity), get_args(Severity)):
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
                raise AdvisorError(
                    f"the rule {other!r} has a relation to {rule!r}, which does not exist; `advisor rules` lists them"
                )
    try:
        causal_ranks(find_causal_links(rules))
    except CycleError as error:
        circle = " → ".join(dict.fromkeys(node[0] for node in reversed(error.args[1])))
        raise AdvisorError(f"these rules explain each other in a circle: {circle}; drop one of the relations") from None


def _declared_links(rules: Iterable[Rule]) -> Iterator[CausalLink]:
    rules = tuple(rules)
    needing = tuple(rule.rule_id() for rule in rules if rule.needs_learning)
    for rule in rules:
        own = rule.rule_id()
        for relation in _as_tuple(rule.explains):
            yield from (CausalLink(own, effect, relation) for effect in _ids(relation, needing))
        for relation in _as_tuple(rule.explained_by):
            yield from (CausalLink(cause, own, relation) for cause in _ids(relation, needing))


def _ids(relation: Relation, needing_learning: tuple[str, ...]) -> tuple[str, ...]:
    return needing_learning if relation.rules == "needs_learning" else relation.rules


def _as_tuple(relations: Relation | tuple[Relation, ...]) -> tuple[Relation, ...]:
    return (relations,) if isinstance(relations, Relation) else relations


def _allowed_places(place: FindingPlace | None) -> tuple[FindingPlace, ...]:
    return get_args(FindingPlace) if place is None else (place,)
