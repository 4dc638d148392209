"""The command `advisor rules`."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.options import rules_option
from advisor.engine.registry import load_rules


@click.command()
@rules_option
def rules(rules: tuple[Path, ...]) -> None:
    """List each rule with its goal and the problem that it detects."""
    loaded_rules = load_rules(directories=rules)
    width = max((len(rule.rule_id()) for rule in loaded_rules), default=0)
    for rule in loaded_rules:
        click.echo(f"{rule.rule_id():{width}}  {rule.goal:14}  {rule.summary()}")
    click.echo(f"\n{len(loaded_rules)} rules. `advisor explain RULE` prints a rule's page.")
