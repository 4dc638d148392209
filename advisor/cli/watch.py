"""The command `advisor watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from advisor.cli.analyze import make_report, print_report_summary, write_report
from advisor.cli.notifying import notify_of_study_events
from advisor.cli.options import AnalysisOptions, analysis_options, log_option, notify_option, study_option
from advisor.contract.redact import redact
from advisor.execution.guarding import GuardedStudy
from advisor.model.errors import AdvisorError, NothingToJudge, convert_os_errors
from advisor.model.progress import ignore_progress
from advisor.model.spec_yaml import load_study_file
from advisor.model.words import clean, count, listed, number, sentence
from advisor.report import Report
from advisor.report.live import LiveReport, live_trial_rows
from advisor.report.model import ReportData
from advisor.report.running import running_trials_summary, trial_alarms
from advisor.tracking.stores.location import parse_tracking_uri

ANALYSIS_INTERVAL_S = 10.0
"""Minimum seconds between two analyses. The pause is longer if the last analysis took longer."""


@click.command()
@click.argument("experiment")
@study_option
@analysis_options
@log_option
@notify_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page.  [default: a free port]")
def watch(
    experiment: str, options: AnalysisOptions, study_file: Path | None, log_to_mlflow: bool, notify: str | None, port: int
) -> None:
    """Analyze EXPERIMENT whenever trials log new data, and serve the latest report as a web page on this machine.

    After each analysis, the command writes the same files as `advisor analyze`. The first analysis waits until a trial has
    logged the objective. Ctrl-C ends it.

    \b
    advisor watch cifar
    advisor watch cifar --port 8080 --log-to-mlflow
    advisor watch cifar --notify ./notify.sh
    """
    print_line = ignore_progress if options.quiet else click.echo
    make = partial(make_report, experiment, options, study_file, unfinished=True)
    write = partial(write_report, experiment=experiment, options=options, study_file=study_file, log_to_mlflow=log_to_mlflow)
    location = parse_tracking_uri(options.tracking_uri)
    spec = None if study_file is None else load_study_file(study_file)
    guarded_study = GuardedStudy(experiment, location, spec, objective=options.objective, direction=options.direction)
    with notify_of_study_events(notify, guarded_study, quiet=options.quiet):
        report = wait_for_report(partial(make, show_progress=not options.quiet), print_line)
        mlflow_line = write(report)
        if not options.quiet:
            print_report_summary(report, options.out, mlflow_line)
        serve_live_report(report, analyze=partial(make, show_progress=False), write=write, port=port, echo=print_line)


def wait_for_report(
    analyze: Callable[[], Report], echo: Callable[[str], object], interval_s: float = ANALYSIS_INTERVAL_S
) -> Report:
    """Repeat the analysis until a trial can be judged, and return the report. While no trial can be judged, print the reason."""
    last_reason = ""
    while True:
        try:
            return analyze()
        except NothingToJudge as error:
            if str(error) != last_reason:
                last_reason = str(error)
                echo(f"{_clock_time()} Waiting for the first value: {redact(last_reason)}. Ctrl+C ends it.")
            time.sleep(interval_s)


def serve_live_report(
    report: Report,
    *,
    analyze: Callable[[], Report],
    write: Callable[[Report], object],
    port: int,
    echo: Callable[[str], object],
    interval_s: float = ANALYSIS_INTERVAL_S,
) -> None:
    """Serve the report until the user interrupts, and a new report when the experiment's data change. echo: function that
    prints a line about each change or failed analysis. Raises AdvisorError if the port is in use."""
    with convert_os_errors(f"cannot serve on port {port}", "choose another --port"):
        live_report = LiveReport(port)
    announced_alarms: set[tuple[str, str]] = set()
    with live_report, suppress(KeyboardInterrupt):
        _show_live_report(live_report, report)
        echo(f"Live report at {live_report.url} (this machine only). Ctrl+C ends it.")
        _announce_alarms(report, announced_alarms, echo)
        duration_s, last_failure = 0.0, None
        while True:
            time.sleep(max(interval_s, duration_s))
            analysis_start = time.monotonic()
            try:
                report, last_failure = _update_live_report(report, live_report, analyze, write, echo), None
                _announce_alarms(report, announced_alarms, echo)
            except Exception as error:
                error_text = str(error) if isinstance(error, AdvisorError) else f"{type(error).__name__}: {error}"
                if (reason := " ".join(redact(error_text).split())) != last_failure:
                    last_failure = reason
                    echo(f"{_clock_time()} The analysis failed and will be repeated: {last_failure}")
            live_report.fail(last_failure)
            duration_s = time.monotonic() - analysis_start
    echo("")


def _announce_alarms(report: Report, announced: set[tuple[str, str]], echo: Callable[[str], object]) -> None:
    for key, line in trial_alarms(report, announced):
        announced.add(key)
        echo(f"{_clock_time()} {line}")


def _update_live_report(
    before: Report,
    live: LiveReport,
    analyze: Callable[[], Report],
    write: Callable[[Report], object],
    echo: Callable[[str], object],
) -> Report:
    new_report = analyze()
    if new_report.provenance.data == before.provenance.data:
        return before
    write(new_report)
    change_sentences = describe_report_changes(before, new_report)
    _show_live_report(live, new_report, change_sentences)
    for line in change_sentences or ("More values were logged; the findings are the same.",):
        echo(f"{_clock_time()} {line}")
    return new_report


def _show_live_report(live: LiveReport, report: Report, news: Sequence[str] = ()) -> None:
    live.show(report.to_html(), _clock_time(), news, live_trial_rows(report), running_trials_summary(report))


def _clock_time() -> str:
    return time.strftime("%H:%M:%S")


def describe_report_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    """Return one sentence for each difference in trials, best value, findings, checks and next studies."""
    return tuple(_report_changes(before, after))


def _report_changes(before: ReportData, after: ReportData) -> Iterator[str]:
    known, best = before.figures.by_id, after.best
    new_trials = [t for t in after.figures.trials if t.id not in known]
    ended_trials = [t for t in after.figures.trials if t.id in known and known[t.id].status == "running" != t.status]
    if new_trials:
        yield f"{count(len(new_trials), 'new trial')} ({after.counts.total:,} in total, {after.counts.running:,} running)."
    if ended_trials:
        yield f"{count(len(ended_trials), 'trial')} ended: {listed(f'{clean(t.name)} ({t.status})' for t in ended_trials)}."
    if best is not None and (before.best is None or before.best.value != best.value):
        metric, now = clean(after.spec.objective.metric), f"{number(best.value)} ({clean(best.name)})"
        previous = None if before.best is None else number(before.best.value)
        yield f"Best {metric}: {now}, previously {previous}." if previous else f"First result: {metric} {now}."
    # The key identifies a finding in both reports, even if the finding's numbers differ.
    old, new = ({(f.rule, f.subject, f.side): sentence(clean(str(f.message))) for f in r.findings} for r in (before, after))
    yield from (f"New finding: {text}" for key, text in new.items() if key not in old)
    yield from (f"Resolved: {text}" for key, text in old.items() if key not in new)
    unassessed_rules = {v.rule for v in before.verdicts_with_status("not-assessed")}
    if assessed := [v.rule for v in after.verdicts if v.rule in unassessed_rules and v.status in ("fired", "quiet")]:
        yield f"{count(len(assessed), 'more check has', 'more checks have')} enough data: {listed(assessed)}."
    files, texts = ({n.file: n.yaml for n in r.next_studies} for r in (before, after))
    if changed := [f"next/{file}" for file, text in texts.items() if files.get(file) != text]:
        yield f"Updated: {listed(changed)}."
    if removed := [f"next/{file}" for file in files if file not in texts]:
        yield f"Removed: {listed(removed)}."
