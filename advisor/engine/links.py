"""The links that rules declare between each other, as a causal graph without circles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import TypeAlias, get_args

from advisor.engine.relation import Link, Place, place_of
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, Severity

Node: TypeAlias = tuple[str, Place, Severity]
"""A node of the causal graph: the findings of a rule by place and severity."""


def node_of(finding: Finding) -> Node:
    """Return the node that the finding belongs to."""
    return finding.rule, place_of(finding), finding.severity


def find_links(rules: Iterable[Rule]) -> tuple[Link, ...]:
    """Return all links between these rules, whether the cause or the effect declares them."""
    rules = tuple(rules)
    known = {rule.rule_id() for rule in rules}
    return tuple(link for link in _declared(rules) if link.cause in known and link.effect in known)


def ranks(links: Sequence[Link]) -> dict[Node, int]:
    """Return the position of each node in causal order, causes first. Raises CycleError for a circle."""
    sorter: TopologicalSorter[Node] = TopologicalSorter()
    for link in links:
        places = product(_places(link.relation.cause_at), _places(link.relation.effect_at))
        for (at_cause, at_effect), cause, effect in product(places, get_args(Severity), get_args(Severity)):
            if link.allows(cause, effect):
                sorter.add((link.effect, at_effect, effect), (link.cause, at_cause, cause))
    return {node: rank for rank, node in enumerate(sorter.static_order())}


def check_relations(rules: Iterable[Rule]) -> None:
    """Raise AdvisorError for relations that name an unknown rule or form a circle."""
    rules = tuple(rules)
    known = {rule.rule_id() for rule in rules}
    for link in _declared(rules):
        for rule, other in ((link.cause, link.effect), (link.effect, link.cause)):
            if rule not in known:
                raise AdvisorError(
                    f"the rule {other!r} has a relation to {rule!r}, which does not exist; `advisor rules` lists them"
                )
    try:
        ranks(find_links(rules))
    except CycleError as error:
        circle = " → ".join(dict.fromkeys(node[0] for node in reversed(error.args[1])))
        raise AdvisorError(f"these rules explain each other in a circle: {circle}; drop one of the relations") from None


def _declared(rules: Iterable[Rule]) -> Iterator[Link]:
    for rule in rules:
        own = rule.rule_id()
        yield from (Link(own, effect, relation) for relation in rule.explains for effect in relation.rules)
        yield from (Link(cause, own, relation) for relation in rule.explained_by for cause in relation.rules)


def _places(place: Place | None) -> tuple[Place, ...]:
    return get_args(Place) if place is None else (place,)
