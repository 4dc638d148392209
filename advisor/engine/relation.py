"""How findings of one rule follow from findings of another: the cause is the headline, what follows stands below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, Severity
from advisor.model.space import is_learning_rate

if TYPE_CHECKING:
    from advisor.engine.rule import Rule

Shared = Literal["study", "trials", "a trial", "subject", "end", "rates", "low rates", "high rates"]
"""What cause and effect must have in common:

study: nothing, the cause concerns the whole study · trials: at least half of the effect's trials show the cause · a trial: one of
them does · subject: the same hyperparameter or metric; a pair shares either of its two · end: the same subject and side · rates:
the effect is about a learning rate · low rates, high rates: the cause is about that end of a learning rate.
"""

Place = Literal["somewhere", "everywhere"]
"""Whether a finding names a place in the search space (it has a subject) or concerns all of it."""

MIN_CONFIDENCE = 0.5
"""Minimum confidence of a finding that explains others."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Which findings follow from which, as a rule declares it in `explains` (its effects) or `explained_by` (its causes)."""

    rules: tuple[str, ...]
    """Ids of the rules on the other side."""
    shares: Shared
    because: str
    """How the effect follows from the cause: one sentence, shown below the effect."""
    waits: bool = True
    """Whether the effect's changes wait until the cause is settled. False if they are part of its cure or useful in any case."""
    cause_at: Place | None = None
    """Restricts the causes to those with, or without, a place in the space."""
    effect_at: Place | None = None
    """Restricts the effects likewise."""
    min_severity: Severity = "note"
    """Minimum severity of the cause."""
    max_severity: Severity = "critical"
    """Maximum severity of the effect."""


@dataclass(frozen=True)
class Link:
    """One pair of rules of a relation."""

    cause: str
    effect: str
    relation: Relation

    def applies(self, effect: Finding, cause: Finding) -> bool:
        """Whether this effect follows from this cause. A note or a doubtful finding never explains anything graver."""
        fits = all(
            place is None or place == place_of(finding)
            for place, finding in ((self.relation.cause_at, cause), (self.relation.effect_at, effect))
        )
        return (
            fits
            and cause.confidence >= MIN_CONFIDENCE
            and self.allows(cause.severity, effect.severity)
            and _share(effect, cause, self.relation.shares)
        )

    def allows(self, cause: Severity, effect: Severity) -> bool:
        """Whether a cause of one severity may explain an effect of another."""
        order = get_args(Severity)  # the gravest first
        explains = max(order.index(cause), order.index(self.relation.max_severity)) <= order.index(effect)
        return explains and order.index(cause) <= order.index(self.relation.min_severity)


Node: TypeAlias = tuple[str, Place, Severity]
"""What links tell apart: the findings of a rule by place and severity."""


def place_of(finding: Finding) -> Place:
    """Whether the finding names a place in the search space."""
    return "everywhere" if finding.subject is None else "somewhere"


def node_of(finding: Finding) -> Node:
    """The finding as links see it."""
    return finding.rule, place_of(finding), finding.severity


def links(rules: Iterable[Rule]) -> tuple[Link, ...]:
    """All links between these rules, as causes and effects declare them."""
    rules = tuple(rules)
    known = {rule.rule_id() for rule in rules}
    return tuple(link for link in _declared(rules) if link.cause in known and link.effect in known)


def ranks(found: Sequence[Link]) -> dict[Node, int]:
    """Position of each node in causal order: what lies at the head of a chain comes first. Raises CycleError for a circle."""
    sorter: TopologicalSorter[Node] = TopologicalSorter()
    for link in found:
        places = product(_places(link.relation.cause_at), _places(link.relation.effect_at))
        for (at_cause, at_effect), cause, effect in product(places, get_args(Severity), get_args(Severity)):
            if link.allows(cause, effect):
                sorter.add((link.effect, at_effect, effect), (link.cause, at_cause, cause))
    return {node: rank for rank, node in enumerate(sorter.static_order())}


def check_relations(rules: Iterable[Rule]) -> None:
    """Refuse relations that name an unknown rule or form a circle. Raises AdvisorError."""
    rules = tuple(rules)
    known = {rule.rule_id() for rule in rules}
    for link in _declared(rules):
        for rule, other in ((link.cause, link.effect), (link.effect, link.cause)):
            if rule not in known:
                raise AdvisorError(
                    f"the rule {other!r} has a relation to {rule!r}, which does not exist; `advisor rules` lists them"
                )
    try:
        ranks(links(rules))
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


def _share(effect: Finding, cause: Finding, what: Shared) -> bool:
    if what == "trials":
        both = set(effect.trials) & set(cause.trials)
        return bool(both) and 2 * len(both) >= len(set(effect.trials))
    if what == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if what == "subject":
        return _one_subject(effect, cause)
    if what == "end":
        return _one_subject(effect, cause) and effect.side == cause.side
    if what == "rates":
        return is_learning_rate(effect.subject or "")
    if what in ("low rates", "high rates"):
        return is_learning_rate(cause.subject or "") and cause.side == what.partition(" ")[0]
    return True


def _one_subject(effect: Finding, cause: Finding) -> bool:
    if effect.subject is None or cause.subject is None:
        return False
    return bool(set(effect.subject.split(" × ")) & set(cause.subject.split(" × ")))
