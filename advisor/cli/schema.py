"""The command `advisor schema`."""

from __future__ import annotations

import json

import click

from advisor.model import spec_yaml
from advisor.report import findings_schema


@click.command()
@click.argument("what", type=click.Choice(["findings", "study"]))
def schema(what: str) -> None:
    """Print the JSON Schema of findings.json or of a study file."""
    click.echo(json.dumps(findings_schema() if what == "findings" else spec_yaml.study_file_schema(), indent=2))
