"""Imports Ray Tune's result folders: a folder a trial with `params.json` and `result.json` or `progress.csv`.

How trials ended, and the metric and its mode, stand in `experiment_state-*.json` where it is there; else a trial with `error.txt`
failed. Pickles are never opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import files, flat
from advisor.interop.importers.flat import Layout
from advisor.interop.importers.runs import Content, Found, as_time_ms
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

_PARAMS, _RESULTS, _PROGRESS, _ERROR = "params.json", "result.json", "progress.csv", "error.txt"
_STEP, _TIME = "training_iteration", "timestamp"
_OWN = frozenset(
    "timestamp date pid hostname node_ip trial_id done should_checkpoint checkpoint_dir_name time_this_iter_s time_total_s "
    "time_since_restore iterations_since_restore timesteps_since_restore timesteps_total episodes_total experiment_id "
    "experiment_tag warmup_time".split()
)
"""What Tune adds to each result by itself."""
_STATUSES: Mapping[str, RunStatus] = {
    "TERMINATED": "FINISHED",
    "ERROR": "FAILED",
    "RUNNING": "RUNNING",
    "PAUSED": "KILLED",
    "PENDING": "SCHEDULED",
}
_MODES = {"min": "minimize", "max": "maximize"}


def find(path: Path) -> list[Found]:
    """The trials at or below a folder, one experiment a folder of trials; AdvisorError if there is none."""
    files.require(path, "a folder with Ray Tune's results")
    wanted = {_RESULTS, _PROGRESS}
    trials = [
        folder for folder, found in files.folders(path, wanted.__contains__) if path.is_dir() and _is_trial(folder)
    ]
    if not trials:
        raise AdvisorError(
            f"{files.printable(path)}: no trial there or below, which is a folder with {_PARAMS} and {_RESULTS} or {_PROGRESS}"
        )
    states = {folder: _State(folder) for folder in {trial.parent for trial in trials}}
    return [_found(trial, states[trial.parent]) for trial in trials]


def _is_trial(folder: Path) -> bool:
    return (folder / _PARAMS).is_file()


class _State:
    """What `experiment_state-*.json`, the newest of them, says of the trials of one folder."""

    def __init__(self, folder: Path) -> None:
        self.statuses: dict[str, str] = {}
        self.aim: dict[str, str] = {}
        for path in sorted(folder.glob("experiment_state-*.json"))[-1:]:
            try:
                self._read(files.read_json(path))
            except (AdvisorError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
                continue  # it only adds to what the trials' own files tell

    def _read(self, state: Mapping[str, Any]) -> None:
        for entry in state.get("trial_data", []):
            trial = json.loads(entry[0]) if isinstance(entry, list) else entry
            folder = Path(str(trial.get("relative_logdir") or trial.get("logdir") or "")).name
            self.statuses[folder] = str(trial.get("status"))
        runner = state.get("runner_data", {})
        metric, mode = runner.get("_metric"), runner.get("_mode")
        if isinstance(metric, str):
            self.aim[contract.TAG_OBJECTIVE] = metric
            if mode in _MODES:
                self.aim[contract.TAG_DIRECTION] = _MODES[mode]


def _found(folder: Path, state: _State) -> Found:
    group = folder.absolute().parent
    name = files.printable(folder.name)
    status = state.statuses.get(folder.name)
    return Found(
        name,
        ("ray", files.folder_name(group), name),
        files.folder_name(group),
        lambda: _content(folder, status, state.aim),
        f"{files.state_of(folder / file for file in (_PARAMS, _RESULTS, _PROGRESS, _ERROR))}-{status}",
        state.aim,
    )


def _content(folder: Path, status: str | None, aim: Mapping[str, str]) -> Content:
    params = files.read_mapping(folder / _PARAMS)
    results, progress = folder / _RESULTS, folder / _PROGRESS
    source = results if results.is_file() and results.stat().st_size else progress
    failed = (folder / _ERROR).is_file()
    rows = flat.Rows()
    if source.is_file() and source.stat().st_size:
        columns = flat.columns_of(source)
        if _STEP not in columns:
            raise AdvisorError(f"{files.printable(source)} has no {_STEP!r}, as Ray Tune's results do")
        rows = flat.read_rows(source, Layout(step=_STEP, time=_TIME if _TIME in columns else None, metric=_metric))
    ended = _STATUSES.get(status or "", "FAILED" if failed else "FINISHED")
    tags = dict(aim)
    if failed:
        tags[contract.TAG_ERROR] = _error(folder / _ERROR)
    return Content(rows.curves.points(), params, tags, ended, started_ms=_started_ms(source))


def _metric(name: str) -> str | None:
    return None if name in _OWN or name.startswith("config/") else name


def _started_ms(source: Path) -> int | None:
    """When the first result came, less the time that it took; None if that is not told."""
    try:
        first = flat.first_row(source) if source.is_file() else {}
    except AdvisorError:
        return None
    try:
        return as_time_ms(float(first[_TIME]) - float(first.get("time_total_s", 0.0)))
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def _error(path: Path) -> str:
    """The class and message of the error, which is the last line of a traceback; running out of memory is said first."""
    lines = files.read_bytes(path, 10_000_000).decode("utf-8", "replace").strip().splitlines()
    line = lines[-1].strip()[:500] if lines else "unknown"
    return f"out of memory: {line}" if "out of memory" in line.lower() or "OutOfMemory" in line else line
