"""The command `advisor history`."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.options import rules_option, tracking_option
from advisor.cli.progress import progress_bar
from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.history.lineages import read_lineages
from advisor.report.formats import history as history_format


@click.command()
@click.argument("study", required=False)
@tracking_option
@click.option("--format", "format_", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@rules_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def history(study: str | None, tracking_uri: str | None, format_: str, rules: tuple[Path, ...], quiet: bool) -> None:
    """Show the rounds of STUDY (a study or an experiment), or of every study of the store that has a successor.

    For each round it lists the trials, the best value, the best so far, the changes with their reasons, and whether the
    predictions came true; then, for each rule, how often its predictions came true in the whole store.

    \b
    advisor history                        all lineages
    advisor history cifar-round-3          the lineage of this study
    advisor history --format json          for other tools
    """
    loaded = load_rules(directories=rules, settings=find_settings(Path.cwd()))
    with progress_bar(enabled=not quiet) as on_progress:
        result = read_lineages(
            study,
            loaded,
            tracking_uri=tracking_uri,
            on_progress=lambda done, total: on_progress("Reading runs", done, total),
        )
    if format_ == "json":
        click.echo(result.ascii_json())
        return
    write = history_format.render_markdown if format_ == "markdown" else history_format.render_plain
    click.echo("\n".join(write(result.lineages, result.hit_rates, result.judged)))
