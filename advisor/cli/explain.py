"""The command `advisor explain`."""

from __future__ import annotations

import difflib

import click

from advisor.engine.pages import rule_page
from advisor.engine.registry import load_rules
from advisor.model.errors import AdvisorError


@click.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of RULE: what it looks at, why it matters, what to do, and its thresholds."""
    loaded = {r.rule_id(): r for r in load_rules()}
    if rule not in loaded:
        close = difflib.get_close_matches(rule, loaded, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`advisor rules` lists them"
        raise AdvisorError(f"there is no rule {rule!r}; {hint}")
    click.echo(rule_page(type(loaded[rule])))
