"""Imports results of Ray Tune: one folder per trial with `params.json` and `result.json` or `progress.csv`.
`experiment_state-*.json` has the statuses and the objective; without it, a trial with an `error.txt` counts as failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from advisor import contract
from advisor.interop.importers import files, metric_tables, table_files
from advisor.interop.importers.metric_tables import RunRows, TableLayout
from advisor.interop.importers.runs import RunContent, RunList, SourceRun, convert_to_time_ms
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_PARAMS_FILE, _RESULTS_FILE, _PROGRESS_FILE, _ERROR_FILE = "params.json", "result.json", "progress.csv", "error.txt"
_STEP_COLUMN, _TIME_COLUMN = "training_iteration", "timestamp"
_RAY_TUNE_COLUMNS = frozenset(
    "timestamp date pid hostname node_ip trial_id done should_checkpoint checkpoint_dir_name time_this_iter_s time_total_s "
    "time_since_restore iterations_since_restore timesteps_since_restore timesteps_total episodes_total experiment_id "
    "experiment_tag warmup_time".split()
)
_RUN_STATUSES: Mapping[str, RunStatus] = {
    "TERMINATED": "FINISHED",
    "ERROR": "FAILED",
    "RUNNING": "RUNNING",
    "PAUSED": "KILLED",
    "PENDING": "SCHEDULED",
}
_DIRECTION_BY_WORD = {"min": "minimize", "max": "maximize"}


def find_runs(source: str | Path) -> RunList:
    """List the trials below a folder, one experiment per folder with trials; raise AdvisorError if there is none."""
    path = files.require_existing_path(source, "a folder with Ray Tune's results")
    folders_with_results = files.folders_with_files(path, {_RESULTS_FILE, _PROGRESS_FILE}.__contains__)
    trials = [folder for folder, _ in folders_with_results if (folder / _PARAMS_FILE).is_file()]
    if not trials:
        raise AdvisorError(
            f"{files.printable_text(path)}: no trial there or below; a trial is a folder with {_PARAMS_FILE} and "
            f"{_RESULTS_FILE} or {_PROGRESS_FILE}"
        )
    states = {folder: _ExperimentState(folder) for folder in {trial.parent for trial in trials}}
    return RunList([_source_run(trial, states[trial.parent]) for trial in trials])


class _ExperimentState:
    """Statuses of the trials and the objective, read from the newest `experiment_state-*.json` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.statuses: dict[str, str] = {}
        self.aim: dict[str, str] = {}
        for path in sorted(folder.glob("experiment_state-*.json"))[-1:]:
            try:
                state_data = files.read_json(path)
                for entry in state_data.get("trial_data", []):
                    trial = json.loads(entry[0]) if isinstance(entry, list) else entry
                    trial_folder = Path(str(trial.get("relative_logdir") or trial.get("logdir") or ""))
                    self.statuses[trial_folder.name] = str(trial.get("status"))
                runner_data = state_data.get("runner_data", {})
                if isinstance(metric := runner_data.get("_metric"), str):
                    self.aim[contract.TAG_OBJECTIVE] = metric
                    if (mode := runner_data.get("_mode")) in _DIRECTION_BY_WORD:
                        self.aim[contract.TAG_DIRECTION] = _DIRECTION_BY_WORD[mode]
            except (AdvisorError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
                continue  # the state file is optional, because each trial has files of its own


def _source_run(folder: Path, state: _ExperimentState) -> SourceRun:
    experiment = files.folder_name(folder.absolute().parent)
    name = files.printable_text(folder.name)
    status = state.statuses.get(folder.name)
    digest = files.digest_of_files(folder / file for file in (_PARAMS_FILE, _RESULTS_FILE, _PROGRESS_FILE, _ERROR_FILE))
    source, aim = ("ray", experiment, name), state.aim
    return SourceRun(name, source, experiment, lambda: _run_content(folder, status, aim), f"{digest}-{status}", aim)


def _run_content(folder: Path, status: str | None, objective_tags: Mapping[str, str]) -> RunContent:
    params = files.read_mapping(folder / _PARAMS_FILE)
    results, progress = folder / _RESULTS_FILE, folder / _PROGRESS_FILE
    source = results if results.is_file() and results.stat().st_size else progress
    has_failed = (folder / _ERROR_FILE).is_file()
    rows = RunRows()
    if source.is_file() and source.stat().st_size:
        columns = table_files.column_names(source)
        if _STEP_COLUMN not in columns:
            raise AdvisorError(f"{files.printable_text(source)} has no {_STEP_COLUMN!r}, which Ray Tune's results have")
        layout = TableLayout(
            step_column=_STEP_COLUMN,
            time_column=_TIME_COLUMN if _TIME_COLUMN in columns else None,
            metric_name=lambda name: None if name in _RAY_TUNE_COLUMNS or name.startswith("config/") else name,
        )
        rows = metric_tables.read_run(source, layout)
    tags = dict(objective_tags)
    if has_failed:
        traceback = files.read_bytes(folder / _ERROR_FILE, 10_000_000).decode("utf-8", "replace").strip().splitlines()
        error = traceback[-1].strip()[:500] if traceback else "unknown"
        out_of_memory = "out of memory" in error.lower() or "OutOfMemory" in error
        tags[contract.TAG_ERROR] = f"out of memory: {error}" if out_of_memory else error
    run_status = _RUN_STATUSES.get(status or "", "FAILED" if has_failed else "FINISHED")
    return RunContent(rows.curves.points(), params, tags, run_status, started_ms=_started_ms(source))


def _started_ms(source: Path) -> int | None:
    """Return the trial's start: the time of its first result minus the seconds until it, or None if the file lacks either."""
    try:
        first_result = table_files.first_row(source) if source.is_file() else {}
        return convert_to_time_ms(float(first_result[_TIME_COLUMN]) - float(first_result.get("time_total_s", 0.0)))
    except (AdvisorError, KeyError, OverflowError, TypeError, ValueError):
        return None
