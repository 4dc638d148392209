"""The command `advisor history`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from advisor.cli.brief import bounded_answer_json as brief_json, brief_option
from advisor.cli.options import rules_option, tracking_option
from advisor.cli.progress import progress_bar
from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.history.answer import quote_name
from advisor.history.lineages import Lineages, read_lineages
from advisor.history.memory import NearbySettings, TriedSetting, find_nearby_settings
from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.words import clean, count, number, setting
from advisor.report.formats import history as history_format
from advisor.tracking import read_study


@click.command()
@click.argument("study", required=False)
@tracking_option
@click.option("--format", "format_", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@brief_option
@click.option(
    "--near",
    metavar="SETTING",
    help="List what was tried near a setting of the experiment STUDY: a run, a commit or NAME=VALUE,...",
)
@rules_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def history(
    study: str | None,
    tracking_uri: str | None,
    format_: str,
    as_json: bool,
    brief: bool,
    near: str | None,
    rules: tuple[Path, ...],
    quiet: bool,
) -> None:
    """Show the rounds of STUDY (a study or an experiment), or of every study of the store that has a successor.

    For each round, the command lists the number of trials, the best value, the best value so far, the changes with reasons, and
    whether the predictions came true. The last lines show how often each rule's predictions came true in the whole store.

    \b
    advisor history                        all lineages
    advisor history cifar-round-3          the lineage of this study
    advisor history --json                 for other tools
    advisor history cifar --near lr=0.2    what was tried near this setting, and what failed
    """
    format_ = "json" if as_json else format_
    result: Lineages | NearbySettings
    if near is None:
        loaded_rules = load_rules(directories=rules, settings=find_settings(Path.cwd()))
        with progress_bar(enabled=not quiet) as on_progress:
            on_read = partial(on_progress, "Reading runs")
            result = read_lineages(study, loaded_rules, tracking_uri=tracking_uri, on_progress=on_read)
    elif study is None:
        raise AdvisorError("--near needs the experiment: advisor history EXPERIMENT --near SETTING")
    else:
        result = find_settings_near(study, near, tracking_uri)
    if brief or format_ == "json":
        click.echo(short_history_json(result) if brief else result.ascii_json())
    elif isinstance(result, NearbySettings):
        click.echo("\n".join([result.action, "", *map(_tried_setting_line, result.tried)]))
    else:
        write = history_format.render_markdown_history if format_ == "markdown" else history_format.render_plain_history
        click.echo("\n".join(write(result.lineages, result.hit_rates, result.judged)))


def short_history_json(result: Lineages | NearbySettings) -> str:
    if isinstance(result, NearbySettings):
        action = result.action
    elif not result.lineages:
        action = "No study of this store continues another study. Run a study from next/ and analyze it."
    else:
        stop, rounds = result.lineages[-1].stop, result.lineages[-1].rounds
        action = stop or f"Go on from {quote_name(rounds[-1].study)}: {count(len(rounds), 'round')} so far."
    return brief_json({"action": action, **result.model_dump(exclude_defaults=True)})


def find_settings_near(experiment: str, near: str, tracking_uri: str | None) -> NearbySettings:
    study = read_study(experiment, tracking_uri=tracking_uri, reading=Reading(population="all"))
    return find_nearby_settings(study, near, experiment)


def _tried_setting_line(tried: TriedSetting) -> str:
    settings_text = ", ".join(f"{clean(n)} {setting(v)}" for n, v in list(tried.settings.items())[:6])
    result_text = number(tried.value) if tried.value is not None else "no result"
    why = f": {clean(tried.why)}" if tried.why else ""
    details = "; ".join(text for text in (count(tried.runs, "run"), settings_text, clean(tried.change)) if text)
    return f"{clean(tried.name)}  {result_text}  {tried.outcome}{why}  ({details})"
