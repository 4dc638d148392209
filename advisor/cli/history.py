"""`advisor history`: the rounds so far, and how often the advice was right."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.options import tracking_option


@click.command()
@click.argument("study", required=False)
@tracking_option
@click.option("--format", "format_", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option(
    "--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Folder with rules of your own."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def history(
    study: str | None, tracking_uri: str | None, format_: str, rule_folders: tuple[Path, ...], quiet: bool
) -> None:
    """The rounds of STUDY (a study or an experiment), or of every study of the store that another one follows from.

    Each round with its trials, its best value and the best so far, what it changed and why, and what became of what the advice
    predicted of it; then how often the predictions of each rule came true, over the whole store.

    \b
    advisor history                        all lineages
    advisor history cifar-round-3          the one that this study is of
    advisor history --format json          for other tools
    """
    from advisor.cli.progress import progress
    from advisor.engine import settings
    from advisor.engine.registry import load_rules
    from advisor.history.lineages import chronicle
    from advisor.report.text import lineages

    rules = load_rules(directories=rule_folders, settings=settings.find_settings(Path.cwd()))
    with progress(enabled=not quiet) as tell:
        found = chronicle(
            study, rules, tracking_uri=tracking_uri, on_progress=lambda done, of: tell("Reading runs", done, of)
        )
    if format_ == "json":
        click.echo(found.model_dump_json(indent=1))
        return
    write = lineages.markdown if format_ == "markdown" else lineages.plain
    click.echo("\n".join(write(found.lineages, found.hit_rates, found.judged)))
