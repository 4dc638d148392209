from __future__ import annotations

from typing import Any

import pytest

from advisor.engine.links import check_relations, find_causal_links
from advisor.engine.registry import load_rules
from advisor.engine.relation import Relation
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError

RULES = load_rules()


def rule(name: str, *effects: str, **fields: Any) -> Rule:
    """A rule that explains the findings of others."""
    relation = Relation(rules=effects, **({"shares": "study", "because": "It does."} | fields))
    body = {"id": name, "explains": (relation,) if effects else (), "__annotations__": {}, "__module__": __name__}
    return type(Rule)(name, (Rule,), body)()


def test_the_built_in_rules_name_rules_that_exist_and_nothing_explains_itself() -> None:
    check_relations(RULES)


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AdvisorError, match="'a' has a relation to 'space-bondary', which does not exist"):
        check_relations([rule("a", "space-bondary"), rule("space-boundary")])


def test_a_circle_is_refused() -> None:
    with pytest.raises(AdvisorError, match="explain each other in a circle"):
        check_relations([rule("a", "b"), rule("b", "c"), rule("c", "a")])
    with pytest.raises(AdvisorError, match="circle: a;"):
        check_relations([rule("a", "a")])


def test_two_directions_are_no_circle_if_places_differ() -> None:
    placed = rule("a", "b", cause_at="somewhere")
    check_relations([placed, rule("b", "a", effect_at="everywhere")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([placed, rule("b", "a")])


def test_two_directions_are_no_circle_if_severities_differ() -> None:
    check_relations([rule("a", "b", min_severity="critical"), rule("b", "a", max_severity="warning")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([rule("a", "b", min_severity="warning"), rule("b", "a", max_severity="warning")])


@pytest.mark.parametrize("link", find_causal_links(RULES), ids=lambda link: f"{link.cause}-{link.effect}")
def test_every_relation_says_why_in_a_sentence(link: Any) -> None:
    assert link.relation.because[0].isupper()
    assert link.relation.because.endswith(".")


def test_no_two_relations_say_the_same() -> None:
    conditions = [
        (k.cause, k.effect, k.relation.shares, k.relation.cause_at, k.relation.effect_at) for k in find_causal_links(RULES)
    ]
    severities = [(k.relation.min_severity, k.relation.max_severity) for k in find_causal_links(RULES)]
    every = list(zip(conditions, severities, strict=True))
    assert len(set(every)) == len(every)


def test_a_relation_to_rules_that_need_learning_reaches_those_only() -> None:
    cause, other, needing = rule("a"), rule("b"), rule("c")
    type(cause).explains = Relation(rules="needs_learning", shares="study", because="It does.")
    type(needing).needs_learning = True
    assert [(k.cause, k.effect) for k in find_causal_links([cause, other, needing])] == [("a", "c")]
