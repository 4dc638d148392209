"""`advisor analyze`: the analysis of an experiment, its files, and what follows it while trials come in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from advisor.cli.options import SEVERITIES, ray_address_option, reaches, tracking_option
from advisor.model.errors import AdvisorError
from advisor.system import shell
from advisor.system.workers import Where

if TYPE_CHECKING:
    from advisor.report import Report


@click.command()
@click.argument("experiment", required=False)
@click.option("--all", "all_", is_flag=True, help="Every experiment, or those named like EXPERIMENT: 'cifar-*'.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Experiments of --all at a time.  [default: as many as there are processors, here or in the cluster]",
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where --all works: processes of this machine, the nodes of a Ray cluster.",
)
@ray_address_option
@tracking_option
@click.option("--objective", metavar="METRIC", help="Metric to judge trials by.  [default: as logged, else inferred]")
@click.option("--direction", type=click.Choice(["minimize", "maximize"]), help="Which way the objective is better.")
@click.option(
    "--study", "study_file", type=click.Path(path_type=Path), help="Study file that declares the search space."
)
@click.option(
    "--filter", "filter_", metavar="EXPR", help="Only runs that match, in MLflow's language: params.model = 'cnn'."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("advisor-report"), show_default=True, help="Output folder."
)
@click.option(
    "--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Folder with rules of your own."
)
@click.option(
    "--only-this-round",
    is_flag=True,
    help="Leave out the trials of earlier rounds that lie in this study's space.  [default: they count as data]",
)
@click.option(
    "--log-to-mlflow",
    is_flag=True,
    help='Put the files into a run "advisor" of the experiment, the verdicts as its tags.',
)
@click.option("--watch", is_flag=True, help="Analyse again while trials come in, and keep an open page fresh.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Where --watch serves the page.  [default: a free port]"
)
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), help="Exit with status 1 if a finding is at least this severe."
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def analyze(
    experiment: str | None,
    all_: bool,
    jobs: int | None,
    on: Literal["local", "ray"],
    ray_address: str | None,
    tracking_uri: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    study_file: Path | None,
    filter_: str | None,
    out: Path,
    rule_folders: tuple[Path, ...],
    only_this_round: bool,
    log_to_mlflow: bool,
    watch: bool,
    port: int,
    fail_on: str | None,
    quiet: bool,
) -> None:
    """Read EXPERIMENT (its name or id) and say what to do next.

    Writes OUT/report.html (open it in a browser), OUT/findings.json, OUT/findings.sarif (annotations for a code host) and
    OUT/next/*.yaml (the next studies, the first to run first).

    \b
    advisor analyze cifar --tracking-uri http://localhost:5000
    advisor analyze cifar --objective val/accuracy --direction maximize --study study.yaml
    advisor analyze cifar --watch              a page that follows the trials as they come in, on this machine only
    advisor analyze cifar --log-to-mlflow      the report among the experiment's runs, for everyone
    advisor analyze --all 'cifar-*'            OUT/index.html lists the experiments, each has a folder below OUT
    advisor analyze --all --on ray --ray-address auto --tracking-uri http://mlflow:5000
                                               the same on a Ray cluster; the reports are written here

    Points of runs that ended are kept in the user's folder for caches, so that the next analysis is quicker; the environment
    variable ADVISOR_CACHE names another folder, or is "off".
    """
    if str(out) in ("", "."):
        raise AdvisorError("--out must name a folder of its own, such as advisor-report")
    options: dict[str, Any] = {
        "tracking_uri": tracking_uri,
        "objective": objective,
        "direction": direction,
        "filter": filter_,
    }
    options |= {"rules": rule_folders, "only_this_round": only_this_round}
    given = _words(objective, direction, study_file, filter_, rule_folders, only_this_round)
    if on != "ray":
        _refuse({"--ray-address": ray_address}, "goes with --on ray: drop it, or add --on ray")
    if all_:
        single = {"--study": study_file, "--watch": watch, "--log-to-mlflow": log_to_mlflow}
        _refuse(single, "goes with a single experiment: drop it, or drop --all")
        from advisor.cli.survey.command import analyze_all

        analyze_all(
            experiment or "*",
            out,
            fail_on,
            where=Where(on, jobs, ray_address),
            quiet=quiet,
            given=given,
            options=options,
        )
        return
    if experiment is None:
        raise click.UsageError("Missing argument 'EXPERIMENT' (or --all)", click.get_current_context())
    _refuse({"--jobs": jobs, "--on ray": on == "ray"}, "goes with --all: drop it, or add --all")
    if watch and fail_on is not None:
        raise AdvisorError("--watch goes on until it is stopped, so that --fail-on says nothing; leave one of them out")
    from advisor.analysis import analyze as run
    from advisor.cli.progress import progress
    from advisor.report.formats.sarif import StudyFile
    from advisor.report.save import save_report

    def make(*, shown: bool = True) -> Report:
        with progress(enabled=shown and not quiet) as tell:
            command = shell.line(["advisor", "analyze", experiment, *given])
            return run(experiment, study=study_file, command=command, on_progress=tell, **options)

    def keep(report: Report) -> str | None:
        """Write the report where it belongs; where it is in MLflow."""
        save_report(report, out, StudyFile.read(study_file) if study_file is not None else None)
        if not log_to_mlflow:
            return None
        from advisor.report.publish import log_to_mlflow as log

        logged = log(report, experiment, tracking_uri=tracking_uri)
        # The page of an artifact shows it; of a server that is too old for that, the run's own page opens.
        where = f"{logged.url}/artifacts/report.html" if logged.url else f"run {logged.run}"
        return f"In MLflow: {where}{'' if logged.changed else ' (was there already)'}"

    report = make()
    where = keep(report)
    if not quiet:
        _show(report, out)
        click.echo(where) if where else None
    if watch:
        from advisor.cli.watch import follow

        follow(report, make=lambda: make(shown=False), keep=keep, port=port, say=_silent if quiet else click.echo)
    if fail_on is not None and any(reaches(f.severity, fail_on) for f in report.findings):
        sys.exit(1)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that were given, as the first of them does not go with the others."""
    for option, value in given.items():
        if value:
            raise AdvisorError(f"{option} {why}")


def _silent(text: str) -> None:
    pass


def _words(
    objective: str | None,
    direction: str | None,
    study: Path | None,
    filter_: str | None,
    rules: tuple[Path, ...],
    only_this_round: bool,
) -> list[str]:
    """The options that the analysis depends on, without the tracking URI, which may hold a password."""
    given = [("--objective", objective), ("--direction", direction), ("--study", study), ("--filter", filter_)]
    given += [("--rules", folder) for folder in rules]
    words = [str(w) for flag, value in given if value is not None for w in (flag, value)]
    return [*words, *(["--only-this-round"] if only_this_round else [])]


def _show(report: Report, out: Path) -> None:
    from rich.console import Console

    from advisor.report.formats.terminal import print_report

    print_report(report, Console())
    click.echo(f"\nReport: {out / 'report.html'}")
