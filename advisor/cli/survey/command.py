"""The command `advisor survey`: selects experiments and analyzes each in a process on this machine or on a Ray cluster."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
from rich.console import Console

from advisor.analysis import analyze
from advisor.cli.options import AnalysisOptions, analysis_options, fail_on_option, is_severe_enough, ray_address_option
from advisor.cli.progress import progress_bar
from advisor.cli.survey.remote_job import RemoteJob, pack_remote_job
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError, NothingToJudge, convert_write_errors
from advisor.model.progress import Progress
from advisor.model.words import replace_surrogates
from advisor.planning.goals import slug
from advisor.report.formats.html import render_survey_page
from advisor.report.formats.index import AnalysisOutcome, make_analysis_outcome, print_experiment_list, sort_worst_first
from advisor.report.save import report_files, report_in_folder, save_report_files
from advisor.system import shell
from advisor.system.atomic import write_files
from advisor.system.processes import map_in_processes, usable_cpus
from advisor.system.ray_tasks import map_on_ray
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.lookup import ExperimentListing
from advisor.tracking.stores.reading import active_experiments

INDEX_PAGE_FILE = "index.html"


def analyze_experiments(
    pattern: str,
    options: AnalysisOptions,
    *,
    on: Literal["local", "ray"],
    jobs: int | None,
    ray_address: str | None,
    on_progress: Progress,
) -> list[AnalysisOutcome]:
    """Analyze the experiments whose names match `pattern`, and write their reports and an index page below `options.out`. Raises
    AdvisorError if no name matches, a file cannot be written, or the cluster cannot run the work. The index page lists any other
    failure."""
    experiments, out = select_experiments(pattern, options.tracking_uri), options.out
    with convert_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if on == "ray":
        results = _analyze_on_ray(experiments, options, jobs, ray_address)
    else:
        analyze_one = partial(_analyze_and_save, words=options.command_words(), out=out, arguments=options.analyze_arguments())
        results = map_in_processes(analyze_one, experiments, jobs=jobs or usable_cpus(), failed=_outcome_of_process_failure)
    outcomes: list[AnalysisOutcome] = []
    for result in results:
        outcomes.append(result)
        on_progress("Analyzing experiments", len(outcomes), len(experiments))
    with convert_write_errors(out):
        write_files({out / INDEX_PAGE_FILE: replace_surrogates(render_survey_page(outcomes))})
    return sort_worst_first(outcomes)


_Analysis: TypeAlias = tuple[AnalysisOutcome, Mapping[str, str]]
"""An experiment's outcome, and the contents of the report files to write, by relative path."""


def _analyze_and_save(
    experiment: SurveyExperiment, *, words: Sequence[str], out: Path, arguments: Mapping[str, Any]
) -> AnalysisOutcome:
    return _save_report(experiment, _analyze_experiment(experiment, words, out, arguments), out)


def _analyze_on_ray(
    experiments: Sequence[SurveyExperiment], options: AnalysisOptions, jobs: int | None, ray_address: str | None
) -> Iterator[AnalysisOutcome]:
    """Analyze experiments on Ray nodes. This process writes the reports, because the nodes may not share this machine's disk."""

    def failed_analysis(experiment: SurveyExperiment, reason: str) -> tuple[SurveyExperiment, _Analysis]:
        return experiment, (AnalysisOutcome(experiment.name, "broken", f"not analyzed: {reason}"), {})

    job = pack_remote_job(options.analyze_arguments(), [experiment.name for experiment in experiments])
    analyze_one = partial(_analyze_remotely, words=options.command_words(), out=options.out, job=job)
    for experiment, analysis in map_on_ray(analyze_one, experiments, jobs=jobs, address=ray_address, failed=failed_analysis):
        yield _save_report(experiment, analysis, options.out)


def _analyze_remotely(
    experiment: SurveyExperiment, *, words: Sequence[str], out: Path, job: RemoteJob
) -> tuple[SurveyExperiment, _Analysis]:
    with job.unpack() as arguments:
        return experiment, _analyze_experiment(experiment, words, out, arguments)


def _analyze_experiment(
    experiment: SurveyExperiment, words: Sequence[str], out: Path, arguments: Mapping[str, Any]
) -> _Analysis:
    command = shell.command_line(["advisor", "analyze", experiment.reference, *words])
    try:
        report = analyze(experiment.reference, command=command, **arguments)
        files = report_files(report_in_folder(report, out / experiment.folder))
        return make_analysis_outcome(experiment.name, experiment.folder, report), files
    except Exception as error:
        return _outcome_of_error(experiment, error), {}


def _save_report(experiment: SurveyExperiment, analysis: _Analysis, out: Path) -> AnalysisOutcome:
    outcome, files = analysis
    try:
        if files:
            save_report_files(files, out / experiment.folder)
        return outcome
    except Exception as error:
        return _outcome_of_error(experiment, error)


def _outcome_of_error(experiment: SurveyExperiment, error: BaseException) -> AnalysisOutcome:
    is_user_error = isinstance(error, AdvisorError)
    reason = redact(str(error) if is_user_error else f"unexpected {type(error).__name__}: {error} (a bug)")
    return AnalysisOutcome(experiment.name, "unknown" if isinstance(error, NothingToJudge) else "broken", reason)


def _outcome_of_process_failure(experiment: SurveyExperiment, error: BaseException) -> AnalysisOutcome:
    if isinstance(error, BrokenProcessPool):
        reason = "not analyzed: the process was killed, perhaps because memory ran out; try fewer --jobs"
    elif isinstance(error, OSError):
        reason = f"not analyzed: its process could not be started ({error.strerror}); try fewer --jobs"
    else:
        return _outcome_of_error(experiment, error)
    return AnalysisOutcome(experiment.name, "broken", reason)


@dataclass(frozen=True, slots=True)
class SurveyExperiment:
    name: str
    reference: str
    """Name of the experiment, or its id if several experiments have the same name."""
    folder: str
    """Folder of the report, relative to the index page. The name does not depend on other experiments."""


def select_experiments(pattern: str, tracking_uri: str | None) -> list[SurveyExperiment]:
    """Return the experiments whose names match the pattern, oldest first. Raises AdvisorError if no name matches."""
    active = active_experiments(tracking_uri)
    name_counts = Counter(e.name for e in active)
    matching = [e for e in active if fnmatchcase(e.name, pattern)]
    if not matching:
        store = parse_tracking_uri(tracking_uri).display
        raise AdvisorError(f"none of the {len(active)} experiments in {store} has a name like {pattern!r}")
    return [SurveyExperiment(e.name, e.name if name_counts[e.name] == 1 else e.id, _report_folder_name(e)) for e in matching]


def _report_folder_name(experiment: ExperimentListing) -> str:
    """Return a readable folder name that ends with the experiment's id, or with a hash if the id is no safe file name."""
    is_safe_name = re.fullmatch(r"[0-9a-z]{1,40}", experiment.id)
    suffix = experiment.id if is_safe_name else hashlib.sha256(experiment.id.encode()).hexdigest()[:16]
    return f"{slug(experiment.name)}-{suffix}"


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
    failures = [o for o in outcomes if o.state == "broken"]
    if failures:
        raise AdvisorError(
            f"{len(failures)} of {len(outcomes)} experiments could not be analyzed; the first error is: {failures[0].verdict}"
        )
    if all(o.state == "unknown" for o in outcomes):
        raise AdvisorError(f"no experiment has results to judge; the reason for the first one: {outcomes[0].verdict}")
    if fail_on is not None and any(o.highest_severity and is_severe_enough(o.highest_severity, fail_on) for o in outcomes):
        sys.exit(1)
