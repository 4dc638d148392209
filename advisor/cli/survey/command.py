"""The command `advisor survey`."""

from __future__ import annotations

import sys
from typing import Literal

import click
from rich.console import Console

from advisor.cli.options import AnalysisOptions, analysis_options, fail_on_option, is_severe_enough, ray_address_option
from advisor.cli.progress import progress_bar
from advisor.cli.survey.analyses import INDEX_PAGE_FILE, analyze_experiments
from advisor.model.errors import AdvisorError
from advisor.report.formats.index import print_experiment_list


@click.command()
@click.argument("pattern", default="*")
@analysis_options
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Experiments to analyze at a time.  [default: the number of processors, here or in the cluster]",
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to analyze: on this machine or on a Ray cluster.",
)
@ray_address_option
@fail_on_option
def survey(
    pattern: str,
    options: AnalysisOptions,
    jobs: int | None,
    on: Literal["local", "ray"],
    ray_address: str | None,
    fail_on: str | None,
) -> None:
    """Analyze every experiment whose name matches PATTERN; without PATTERN, analyze all experiments.

    Writes the report of each experiment to a separate folder below OUT, and OUT/index.html, which lists all reports. If an
    experiment cannot be analyzed, the index lists the reason, the other experiments are still analyzed, and the exit status is
    2.

    \b
    advisor survey 'cifar-*'
    advisor survey --on ray --ray-address auto --tracking-uri http://mlflow:5000
                                               on a Ray cluster; the reports are written here
    """
    if ray_address and on != "ray":
        raise AdvisorError("--ray-address needs --on ray")

    with progress_bar(enabled=not options.quiet) as on_progress:
        outcomes = analyze_experiments(pattern, options, on=on, jobs=jobs, ray_address=ray_address, on_progress=on_progress)
    if not options.quiet:
        print_experiment_list(outcomes, Console())
        click.echo(f"\nReports: {options.out / INDEX_PAGE_FILE}")
    broken = [o for o in outcomes if o.state == "broken"]
    if broken:
        raise AdvisorError(
            f"{len(broken)} of {len(outcomes)} experiments could not be analyzed; the reason for the first one: {broken[0].verdict}"
        )
    if all(o.state == "unknown" for o in outcomes):
        raise AdvisorError(f"no experiment has results to judge; the reason for the first one: {outcomes[0].verdict}")
    if fail_on is not None and any(o.severest and is_severe_enough(o.severest, fail_on) for o in outcomes):
        sys.exit(1)
