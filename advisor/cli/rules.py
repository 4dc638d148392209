"""The command `advisor rules`."""

from __future__ import annotations

import click

from advisor.engine.registry import load_rules


@click.command()
def rules() -> None:
    """List the rules with their goal and what each looks for."""
    loaded = load_rules()
    width = max((len(rule.rule_id()) for rule in loaded), default=0)
    for rule in loaded:
        click.echo(f"{rule.rule_id():{width}}  {rule.goal:14}  {rule.summary()}")
    click.echo(f"\n{len(loaded)} rules. `advisor explain RULE` prints a rule's page.")
