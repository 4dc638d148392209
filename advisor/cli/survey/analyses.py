"""Analyzes many experiments, each separately in a process on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from advisor.analysis import analyze
from advisor.cli.options import AnalysisOptions
from advisor.cli.survey.experiments import Experiment, select_experiments
from advisor.cli.survey.remote_job import RemoteJob, pack_job
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError, NothingToJudge, write_errors_to
from advisor.model.progress import Progress
from advisor.model.words import encodable
from advisor.report.formats.html import render_index
from advisor.report.formats.index import Outcome, make_outcome, sort_outcomes
from advisor.report.save import files, placed, save_files
from advisor.system import shell
from advisor.system.atomic import write_files
from advisor.system.processes import map_in_processes, usable_cpus
from advisor.system.ray_tasks import map_on_ray

INDEX_FILE = "index.html"


@dataclass(frozen=True, slots=True)
class AnalysisWorkers:
    """The place where the analyses run (this machine or Ray), and the number of analyses that run in parallel."""

    on: Literal["local", "ray"] = "local"
    jobs: int | None = None
    ray_address: str | None = None


@dataclass(frozen=True, slots=True)
class _Analysis:
    outcome: Outcome
    texts: Mapping[str, str] = field(default_factory=dict)
    """Contents of the report's files by relative path, if the process that receives this result must write them."""


def analyze_all(
    pattern: str, options: AnalysisOptions, *, workers: AnalysisWorkers, on_progress: Progress
) -> list[Outcome]:
    """Analyze the experiments whose names match the pattern. Write the reports of these experiments and an index page below
    `options.out`.

     The written files are the same for every value of `workers`. Raises AdvisorError if no name
    matches, a file cannot be written, or the cluster cannot run the work. Any other failure becomes the outcome of its experiment.
    """
    experiments = select_experiments(pattern, options.tracking_uri)
    out = options.out
    with write_errors_to(out):
        out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for result in (_analyze_on_ray if workers.on == "ray" else _analyze_locally)(experiments, options, workers):
        outcomes.append(result)
        on_progress("Analyzing experiments", len(outcomes), len(experiments))
    with write_errors_to(out):
        write_files({out / INDEX_FILE: encodable(render_index(outcomes))})
    return sort_outcomes(outcomes)


def _analyze_locally(
    experiments: Sequence[Experiment], options: AnalysisOptions, workers: AnalysisWorkers
) -> Iterator[Outcome]:
    """Analyze in local processes, which also write the reports, and yield the outcomes."""
    work = partial(_analyze_and_save, words=options.words(), out=options.out, arguments=options.analyze_arguments())
    return map_in_processes(work, experiments, jobs=workers.jobs or usable_cpus(), failed=_process_failure)


def _analyze_on_ray(
    experiments: Sequence[Experiment], options: AnalysisOptions, workers: AnalysisWorkers
) -> Iterator[Outcome]:
    """Analyze on Ray nodes and yield the outcomes. This process writes the reports, because the nodes may not share this
    machine's disk."""
    job = pack_job(options.analyze_arguments(), [experiment.name for experiment in experiments])
    work = partial(_analyze_remotely, words=options.words(), out=options.out, job=job)
    results = map_on_ray(work, experiments, jobs=workers.jobs, address=workers.ray_address, failed=_node_failure)
    for experiment, analysis in results:
        yield _save_report(experiment, analysis, options.out)


def _analyze_and_save(
    experiment: Experiment, *, words: Sequence[str], out: Path, arguments: Mapping[str, Any]
) -> Outcome:
    return _save_report(experiment, _analyze(experiment, words, out, arguments), out)


def _analyze_remotely(
    experiment: Experiment, *, words: Sequence[str], out: Path, job: RemoteJob
) -> tuple[Experiment, _Analysis]:
    with job.unpack() as arguments:
        return experiment, _analyze(experiment, words, out, arguments)


def _analyze(experiment: Experiment, words: Sequence[str], out: Path, arguments: Mapping[str, Any]) -> _Analysis:
    command = shell.command_line(["advisor", "analyze", experiment.reference, *words])
    try:
        report = analyze(experiment.reference, command=command, **arguments)
        return _Analysis(
            make_outcome(experiment.name, experiment.folder, report), files(placed(report, out / experiment.folder))
        )
    except Exception as error:
        return _Analysis(_failed_outcome(experiment, error))


def _save_report(experiment: Experiment, analysis: _Analysis, out: Path) -> Outcome:
    try:
        if analysis.texts:
            save_files(analysis.texts, out / experiment.folder)
        return analysis.outcome
    except Exception as error:
        return _failed_outcome(experiment, error)


def _failed_outcome(experiment: Experiment, error: BaseException) -> Outcome:
    if isinstance(error, NothingToJudge):
        return Outcome(experiment.name, "unknown", redact(str(error)))
    if isinstance(error, AdvisorError):
        return Outcome(experiment.name, "broken", redact(str(error)))
    return Outcome(experiment.name, "broken", redact(f"unexpected {type(error).__name__}: {error} (a bug)"))


def _process_failure(experiment: Experiment, error: BaseException) -> Outcome:
    if isinstance(error, BrokenProcessPool):
        reason = "not analyzed: the process was killed, perhaps because memory ran out; try fewer --jobs"
    elif isinstance(error, OSError):
        reason = f"not analyzed: its process could not be started ({error.strerror}); try fewer --jobs"
    else:
        return _failed_outcome(experiment, error)
    return Outcome(experiment.name, "broken", reason)


def _node_failure(experiment: Experiment, reason: str) -> tuple[Experiment, _Analysis]:
    return experiment, _Analysis(Outcome(experiment.name, "broken", f"not analyzed: {reason}"))
