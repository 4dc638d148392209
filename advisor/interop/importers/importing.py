"""Imports the runs of another tool into MLflow. Only one run is in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from advisor import contract
from advisor.interop.importers.mlflow_runs import MAX_NAME_CHARACTERS, MlflowNames, NewRun, convert_run, source_text, valid_text
from advisor.interop.importers.runs import RunList, SourceRun
from advisor.interop.importers.writers import ClientWriter, ImportedRun, RunWriter, SqlWriter
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction
from advisor.tracking.stores.client import explain_error, quiet_mlflow
from advisor.tracking.stores.location import default_location_for_writing, parse_tracking_uri

_MAX_LISTED_NOTES = 20


@dataclass(slots=True)
class ImportSummary:
    experiments: tuple[str, ...]
    new_runs: int = 0
    unchanged_runs: int = 0
    points: int = 0
    warnings: tuple[str, ...] = ()
    extended_runs: int = 0
    unreadable: tuple[str, ...] = ()
    """One sentence for each unreadable run, with the reason."""

    def add(self, run: NewRun, points: int) -> None:
        """Count a stored run. points: number of metric points that this import wrote to the run."""
        self.points += points if run.stored_run_id else sum(len(p.steps) for p in run.points.values())
        if run.stored_run_id is None:
            self.new_runs += 1
        elif points:
            self.extended_runs += 1
        else:
            self.unchanged_runs += 1


def import_runs(
    source: RunList,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> ImportSummary:
    """Import the runs of another tool into MLflow, and add the new data of runs that have grown. Nothing is deleted. A missing
    SQLite file is created. experiment: name of one experiment for all runs, by default the tool's experiments. objective,
    direction: replace the tool's. on_progress: called with (finished runs, total runs). Raises AdvisorError if all runs are
    unreadable or the store is not writable."""
    runs_by_experiment: dict[str, list[SourceRun]] = {}
    for run in source.runs:
        runs_by_experiment.setdefault(valid_text(experiment or run.experiment)[:MAX_NAME_CHARACTERS], []).append(run)
    names = MlflowNames()
    objective_tags: dict[str, str] = {contract.TAG_OBJECTIVE: names.mlflow_name(objective)} if objective else {}
    if direction:
        objective_tags[contract.TAG_DIRECTION] = direction
    notes: list[str] = []
    summary = ImportSummary(tuple(runs_by_experiment))

    def report_progress(*written: Any) -> None:
        if written:
            summary.add(*written)
        if on_progress is not None:
            finished_count = summary.new_runs + summary.extended_runs + summary.unchanged_runs + len(summary.unreadable)
            on_progress(finished_count, len(source.runs))

    with open_writer(tracking_uri) as writer:
        for name, runs in runs_by_experiment.items():
            new = _read_new_runs(runs, writer.imported_runs(name), objective_tags, names, summary, notes, report_progress)
            for first in new:  # create the experiment only when its first run is ready to be written
                shared = {t: v for t, v in runs[0].experiment_tags.items() if all(r.experiment_tags.get(t) == v for r in runs)}
                writer.write(name, {**names.rename_in_tags(shared), **objective_tags}, chain([first], new), report_progress)
    report_progress()
    if summary.unreadable and not (summary.new_runs or summary.extended_runs or summary.unchanged_runs):
        other_count = len(summary.unreadable) - 1
        raise AdvisorError(summary.unreadable[0] + (f" ({other_count:,} more runs are unreadable, too)" if other_count else ""))
    unique_notes = list(dict.fromkeys([*names.warnings, *notes]))
    if len(unique_notes) > _MAX_LISTED_NOTES:
        unique_notes[_MAX_LISTED_NOTES:] = [f"{len(unique_notes) - _MAX_LISTED_NOTES:,} more notes of this kind are not shown."]
    summary.warnings = (*source.notes, *unique_notes)
    return summary


@contextmanager
def open_writer(tracking_uri: str | None) -> Iterator[RunWriter]:
    """Yield the fastest writer that the tracking store supports. Raise AdvisorError if the tracking store is not writable."""
    location = parse_tracking_uri(tracking_uri) if tracking_uri else default_location_for_writing()
    with quiet_mlflow():
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield SqlWriter(location) if location.kind in ("sqlite", "database") else ClientWriter(location)
        except AdvisorError:
            raise
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise explain_error(error, location, "write to") from error


def _read_new_runs(
    runs: Sequence[SourceRun],
    imported: Mapping[str, ImportedRun],
    chosen: Mapping[str, str],
    names: MlflowNames,
    summary: ImportSummary,
    notes: list[str],
    report_progress: Callable[[], None],
) -> Iterator[NewRun]:
    """Read and yield the new and changed runs, one by one. Unchanged and unreadable runs are only counted in `summary`."""
    name_counts = Counter(run.name for run in runs)
    # Unchanged runs also get a number, so that a repeated import gives each run the same number.
    for number, run in enumerate(runs):
        stored = imported.get(source_text([valid_text(part) for part in run.source]))
        if stored is not None and run.files_digest in (None, stored.files_digest):
            summary.unchanged_runs += 1
            report_progress()
            continue
        unique_run = run if name_counts[run.name] == 1 else replace(run, name=f"{run.experiment}/{run.name}")
        try:
            content = run.read()
            new = convert_run(unique_run, content, names, number, objective=chosen, continues=stored.run_id if stored else None)
        except AdvisorError as error:
            summary.unreadable += (str(error),)
            report_progress()
        else:
            notes += content.notes
            yield new
