"""The command `advisor explain`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import click

from advisor.cli.brief import bounded_answer_json as brief_json, brief_option
from advisor.cli.options import rules_option
from advisor.engine.pages import rule_page
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError


@click.command()
@click.argument("rule")
@rules_option
@brief_option
def explain(rule: str, rules: tuple[Path, ...], brief: bool) -> None:
    """Print the page of RULE: what the rule looks at, why the problem matters, what to do, and the rule's thresholds."""
    found_rule = find_rule(rule, rules)
    click.echo(short_rule_json(found_rule) if brief else rule_page(found_rule))


def find_rule(rule: str, directories: Sequence[Path] = ()) -> type[Rule]:
    """Return the rule with this id. If no rule has this id, raise AdvisorError and suggest the most similar id."""
    rule_types = {r.rule_id(): type(r) for r in load_rules(directories=directories)}
    id = rule.lower().replace("_", "-")
    if id in rule_types:
        return rule_types[id]
    similar_ids = difflib.get_close_matches(id, list(rule_types), n=1)
    hint = f"did you mean {similar_ids[0]!r}?" if similar_ids else "`advisor rules` lists them"
    raise AdvisorError(f"there is no rule {rule!r}; {hint}")


def short_rule_json(rule: type[Rule]) -> str:
    summary, *sections = rule.page().split("\n## ")
    parts = {title.strip(): " ".join(text.split()) for title, _, text in (s.partition("\n") for s in sections)}
    leading_keys = {"action": parts.pop("What to do", ""), "rule": rule.rule_id(), "finding": summary.strip()}
    return brief_json({**leading_keys, **parts})
