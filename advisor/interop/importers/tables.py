"""Imports tidy tables, one of trials and one of curves, into MLflow: one experiment a study.

TRIALS has one row a trial: study, trial, params (JSON object), status, objective (metric name), direction (min or max,
minimize or maximize), and, if
there, seed (whole number or empty) and extra (JSON object of facts). CURVES has one row a point: study, trial, metric, step, value
and, if there, time_s (seconds since the trial's start, or empty).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.interop.importers.columns import Table
from advisor.interop.importers.importing import ImportSummary, import_runs, param_text
from advisor.interop.importers.runs import START_MS, Content, Curves, Found
from advisor.interop.importers.writer import MAX_VALUE
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray
from advisor.tracking.runs import RunStatus

_TRIAL_COLUMNS = ("study", "trial", "params", "status", "objective", "direction")
_STATUSES: Mapping[str, RunStatus] = {
    "complete": "FINISHED",
    "diverged": "FINISHED",
    "stopped": "KILLED",
    "infeasible": "FAILED",
    "no_data": "FAILED",
    "running": "RUNNING",
}
_DIRECTIONS = {"min": "minimize", "max": "maximize", "minimize": "minimize", "maximize": "maximize"}
_FACTS = {
    "planned_steps": contract.TAG_MAX_TRAIN_STEPS,
    **{
        tag.removeprefix(contract.TAG_PREFIX): tag
        for tag in (
            contract.TAG_MAX_TRAIN_STEPS,
            contract.TAG_BATCH_SIZE,
            contract.TAG_OPTIMIZER,
            contract.TAG_NORM_LAYERS,
            contract.TAG_PARAMETERS,
            contract.TAG_GRAD_CLIP,
            contract.TAG_CHECKPOINTS,
            contract.TAG_COMMAND,
            contract.TAG_GIT_COMMIT,
            contract.TAG_DEVICE,
            contract.TAG_STEP_UNIT,
        )
    },
    **{
        key: contract.TAG_PREFIX + key
        for key in (
            "n_train",
            "n_valid",
            "n_test",
            "steps_per_epoch",
            "stop_reason",
            "step_hint",
            "train_thin",
            "licence",
        )
    },
}
"""Keys of `extra` that become a tag of their own; all others are kept together in one."""
_TAG_EXTRA = contract.TAG_PREFIX + "extra"


@dataclass(frozen=True, slots=True)
class _Trial:
    row: int
    study: str
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    status: RunStatus


def import_tables(
    trials: Path,
    curves: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImportSummary:
    """Import the tables (see the module) into MLflow.

    tracking_uri: default as MLflow resolves it; a SQLite file is made if it is not there. experiment: import all studies into the
    experiment of this name instead of one each. on_progress: told (trials dealt with, trials in all).

    Both tables are checked before anything is written. Trials that are there already are skipped, so an import that was cut off
    is completed by repeating it. Raises AdvisorError, in one line that names file, column and row.
    """
    read = _read_trials(
        Table(Path(trials), dict.fromkeys(_TRIAL_COLUMNS, "text"), {"seed": "integer", "extra": "text"})
    )
    points = _Curves(
        Table(
            Path(curves),
            {"study": "text", "trial": "text", "metric": "text", "step": "integer", "value": "number"},
            {"time_s": "number"},
        ),
        read,
    )
    summary = import_runs(
        [_found(trial, points) for trial in read],
        tracking_uri=tracking_uri,
        experiment=experiment,
        on_progress=on_progress,
    )
    return replace(summary, warnings=(*summary.warnings, *points.warnings))


def _found(trial: _Trial, points: _Curves) -> Found:
    aim = {tag: trial.tags[tag] for tag in (contract.TAG_OBJECTIVE, contract.TAG_DIRECTION)}
    return Found(
        trial.name, (trial.study, trial.name), trial.study, read=lambda: points.content(trial), experiment_tags=aim
    )


# --- trials ---------------------------------------------------------------------------------------------------------------------


def _read_trials(table: Table) -> list[_Trial]:
    if not table.rows:
        raise AdvisorError(f"{table.path} holds no trials")
    for column in (c for c in _TRIAL_COLUMNS if c != "params"):
        table.require_full(column)
    columns = [table.text(c) for c in _TRIAL_COLUMNS]
    seeds, extras = table.optional_integers("seed"), table.text("extra")
    seen: dict[tuple[str, str], int] = {}
    trials = []
    for row in range(table.rows):
        study, trial, params, status, objective, direction = ((c[row] or "").strip() for c in columns)
        for column, name in (("study", study), ("trial", trial), ("objective", objective)):
            if not name:
                raise table.error(column, row, "the cell is empty")
        if status not in _STATUSES:
            raise table.error("status", row, f"{status!r} is none of {', '.join(_STATUSES)}")
        if direction not in _DIRECTIONS:
            raise table.error("direction", row, f"{direction!r} is none of {', '.join(_DIRECTIONS)}")
        if (study, trial) in seen:
            raise table.error("trial", row, f"{trial!r} of study {study!r} is already in row {seen[study, trial] + 1}")
        seen[study, trial] = row
        tags = {
            contract.TAG_STUDY: study[:MAX_VALUE],
            contract.TAG_STATUS: status,
            contract.TAG_OBJECTIVE: objective,
            contract.TAG_DIRECTION: _DIRECTIONS[direction],
            **_facts(_json(table, "extra", row, extras[row])),
        }
        if seeds[row] is not None:
            tags[contract.TAG_SEED] = str(seeds[row])
        trials.append(_Trial(row, study, trial, _json(table, "params", row, params), tags, _STATUSES[status]))
    return trials


def _json(table: Table, column: str, row: int, text: str | None) -> dict[str, Any]:
    if not text or not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise table.error(column, row, f"is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise table.error(column, row, f"must be a JSON object such as {{}}, not {text[:60]}")
    return parsed


def _facts(extra: Mapping[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = {}
    rest: dict[str, Any] = {}
    length = 2
    for key, value in extra.items():
        if key in _FACTS and value is not None:
            tags[_FACTS[key]] = param_text(value)
        elif value is not None:
            length += len(json.dumps({key: value}))
            if length <= MAX_VALUE:
                rest[key] = value
    return {**tags, **({_TAG_EXTRA: json.dumps(rest)} if rest else {})}


# --- curves ---------------------------------------------------------------------------------------------------------------------


class _Curves:
    """The points of the curves table, sorted by trial and metric once, then sliced."""

    def __init__(self, table: Table, trials: Sequence[_Trial]) -> None:
        rows = {(t.study, t.name): t.row for t in trials}
        row_of = _trial_rows(table, rows)
        metric, metrics = table.codes("metric")
        self._metrics = [m.strip() for m in metrics]
        self._order = np.lexsort((metric, row_of))
        self._order = self._order[row_of[self._order] >= 0]
        self._row, self._metric = row_of[self._order], metric[self._order]
        self._steps, self._values = table.integers("step"), table.numbers("value")
        self._times = table.numbers("time_s")
        orphans = table.rows - len(self._order)
        self.warnings = [f"{orphans:,} points in {table.path} belong to no trial and were left out."] if orphans else []
        if not len(self._order):
            self.warnings.append(
                f"No trial has a point: {table.path} holds none{' of these trials' if orphans else ''}."
            )

    def content(self, trial: _Trial) -> Content:
        """The trial as a run."""
        started = START_MS + 1000 * trial.row  # tables hold no dates: in their order, a second apart
        start, stop = np.searchsorted(self._row, [trial.row, trial.row + 1])
        order, metric = self._order[start:stop], self._metric[start:stop]
        curves = Curves()
        for code in np.unique(metric):
            rows = order[metric == code]
            times = _times_ms(self._times[rows], started)
            curves.extend(self._metrics[code], self._steps[rows], self._values[rows], times)
        return Content(curves.points(), trial.params, trial.tags, trial.status, started)


def _trial_rows(table: Table, rows: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """The row in TRIALS of each point's trial, -1 without one."""
    study, studies = table.codes("study")
    trial, trials = table.codes("trial")
    pairs, which = np.unique(study * len(trials) + trial, return_inverse=True)
    found = [rows.get((studies[p // len(trials)].strip(), trials[p % len(trials)].strip()), -1) for p in pairs.tolist()]
    return np.array(found, dtype=np.int64)[which]


def _times_ms(seconds: FloatArray, started_ms: int) -> NDArray[np.int64]:
    """Timestamps, -1 for a point without a time."""
    known = np.isfinite(seconds) & (np.abs(seconds) < 1e10)
    timed = started_ms + np.round(np.where(known, seconds, 0.0) * 1000).astype(np.int64)
    return np.where(known, timed, -1)
