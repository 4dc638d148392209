"""The command `advisor explain`."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from advisor.cli.options import rules_option
from advisor.engine.pages import rule_page
from advisor.engine.registry import load_rules
from advisor.model.errors import AdvisorError


@click.command()
@click.argument("rule")
@rules_option
def explain(rule: str, rules: tuple[Path, ...]) -> None:
    """Print the page of RULE: what it looks at, why it matters, what to do, and its thresholds."""
    loaded = {r.rule_id(): r for r in load_rules(directories=rules)}
    id = rule.lower().replace("_", "-")
    if id in loaded:
        click.echo(rule_page(type(loaded[id])))
    else:
        close = difflib.get_close_matches(id, list(loaded), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`advisor rules` lists them"
        raise AdvisorError(f"there is no rule {rule!r}; {hint}")
