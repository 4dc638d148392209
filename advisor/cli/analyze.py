"""The command `advisor analyze`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from advisor.analysis import analyze as run_analysis
from advisor.cli.brief import Json, bounded_answer_json as brief_json, brief_option, markdown_option, write_markdown_file
from advisor.cli.options import AnalysisOptions, analysis_options, fail_on_option, is_severe_enough, log_option, study_option
from advisor.cli.progress import progress_bar
from advisor.model.message import MessagePart, join_items
from advisor.model.words import clean
from advisor.report import Report
from advisor.report.formats.sarif import StudyFile
from advisor.report.formats.terminal import print_report
from advisor.report.save import log_to_mlflow as publish, report_in_folder, save_report
from advisor.report.text.headline import headline_goal_and_reason
from advisor.system import shell

MAX_RULE_ERROR_CHARS = 400


@click.command()
@click.argument("experiment")
@study_option
@analysis_options
@log_option
@fail_on_option
@markdown_option
@brief_option
def analyze(
    experiment: str,
    options: AnalysisOptions,
    study_file: Path | None,
    log_to_mlflow: bool,
    fail_on: str | None,
    markdown: Path | None,
    brief: bool,
) -> None:
    """Read EXPERIMENT (its name or id) and say what to do next.

    Writes OUT/report.html (open it in a browser), OUT/findings.json, OUT/findings.sarif (annotations for a code host) and
    OUT/next/*.yaml (the next studies, the first to run first).

    \b
    advisor analyze cifar --tracking-uri http://localhost:5000
    advisor analyze cifar --objective val/accuracy --direction maximize --study study.yaml
    advisor analyze cifar --log-to-mlflow      the report among the experiment's runs, for everyone
    advisor watch cifar                        the same, again and again while trials come in
    advisor survey 'cifar-*'                   the same for every experiment of the store

    Points of finished runs are cached in the user's cache folder, which makes the next analysis faster; the environment variable
    ADVISOR_CACHE names another folder, or is "off".
    """
    report = make_report(experiment, options, study_file, show_progress=not (options.quiet or brief))
    location = write_report(report, experiment, options, study_file, log_to_mlflow)
    if markdown is not None:
        write_markdown_file(report.to_markdown(), markdown)
    if brief:
        click.echo(short_report_json(report, options.out))
    elif not options.quiet:
        print_report_summary(report, options.out, location)
    if fail_on is not None and any(is_severe_enough(f.severity, fail_on) for f in report.findings):
        sys.exit(1)


def short_report_json(report: Report, out: Path | None, show: Callable[[MessagePart], str] = str) -> str:
    """Return the main points as JSON. out: folder of the written report, or None. show: formats texts from the store."""
    best = report.best
    answer: dict[str, Json] = {
        "action": join_items(headline_goal_and_reason(report), " ").render(show).strip(),
        "experiment": report.spec.study,
        "metric": report.spec.objective.metric,
        "trials": report.counts.total,
        "best": {"trial": best.name, "value": best.value} if best is not None else None,
        "findings": [
            {
                "rule": f.rule,
                "severity": f.severity,
                "confidence": f.confidence,
                "action": f.action.render(show),
                "why": f.message.render(show),
            }
            for f in report.heads
        ],
        "next": [
            {"file": str(out / "next" / n.file) if out is not None else None, "goal": n.spec.goal} for n in report.next_studies
        ],
        "more": [str(out / name) for name in ("findings.json", "report.html")] if out is not None else (),
    }
    return brief_json(answer)


def make_report(
    experiment: str, options: AnalysisOptions, study_file: Path | None, *, show_progress: bool, unfinished: bool = False
) -> Report:
    """Analyze the experiment and return the report. unfinished: whether to accept a study in which no trial has ended yet."""
    command = shell.command_line(["advisor", "analyze", experiment, *options.command_words(study_file)])
    arguments = {**options.analyze_arguments(), "study": study_file, "command": command, "unfinished": unfinished}
    with progress_bar(enabled=show_progress) as on_progress:
        report = run_analysis(experiment, on_progress=on_progress, **arguments)
    return report_in_folder(report, options.out)


def write_report(
    report: Report, experiment: str, options: AnalysisOptions, study_file: Path | None, log_to_mlflow: bool
) -> str | None:
    """Write the report, print a line for each rule that raised an exception, and return a line with its address in MLflow."""
    for verdict in report.verdicts_with_status("broken"):
        click.echo(f"advisor: {clean(f'the rule {verdict.rule} broke: {verdict.reason}')[:MAX_RULE_ERROR_CHARS]}", err=True)
    save_report(report, options.out, StudyFile.read(study_file) if study_file is not None else None)
    if not log_to_mlflow:
        return None
    published_report = publish(report, experiment, tracking_uri=options.tracking_uri)
    # If the MLflow server is too old for artifact pages, this address shows the run's page.
    report_address = f"{published_report.url}/artifacts/report.html" if published_report.url else f"run {published_report.run}"
    return f"In MLflow: {report_address}{'' if published_report.changed else ' (was there already)'}"


def print_report_summary(report: Report, out: Path, location: str | None) -> None:
    print_report(report.model_copy(update={"folder": str(out)}), Console())
    click.echo(f"\nReport: {out / 'report.html'}")
    if location:
        click.echo(location)
