"""Imports tidy tables, one of trials and one of curves, into MLflow: one experiment a study.

TRIALS has one row a trial: study, trial, params (JSON object), status, objective (metric name), direction (min or max,
minimize or maximize), and, if
there, seed (whole number or empty) and extra (JSON object of facts). CURVES has one row a point: study, trial, metric, step, value
and, if there, time_s (seconds since the trial's start, or empty).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.errors import AdvisorError
from advisor.importers.columns import Table
from advisor.importers.writer import MAX_VALUE, Names, NewPoints, NewRun, open_writer, source_text
from advisor.space import FloatArray
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
_START_MS = 1_577_836_800_000
"""2020-01-01: tables hold no dates, so the first trial starts then, and each following one a second later, in their order."""


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import did."""

    experiments: tuple[str, ...]
    written: int
    """Runs written."""
    skipped: int
    """Runs that an earlier import had written."""
    points: int
    """Points of the runs written."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Trial:
    row: int
    study: str
    name: str
    params: Mapping[str, str]
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
    names = Names()
    read = _read_trials(
        Table(Path(trials), dict.fromkeys(_TRIAL_COLUMNS, "text"), {"seed": "integer", "extra": "text"}), names
    )
    points = _Curves(
        Table(
            Path(curves),
            {"study": "text", "trial": "text", "metric": "text", "step": "integer", "value": "number"},
            {"time_s": "number"},
        ),
        read,
        names,
    )
    groups: dict[str, list[_Trial]] = {}
    for trial in read:
        groups.setdefault(experiment or trial.study, []).append(trial)
    tell = on_progress or _silent
    written = skipped = counted = 0

    def one_more() -> None:
        nonlocal written
        written += 1
        tell(written + skipped, len(read))

    with open_writer(tracking_uri) as writer:
        for name, group in groups.items():
            there = writer.imported(name)
            new = [t for t in group if source_text((t.study, t.name)) not in there]
            skipped += len(group) - len(new)
            tell(written + skipped, len(read))
            if new or not there:
                writer.write(name, _experiment_tags(group), points.runs(new, _run_names(group)), one_more)
            counted += sum(points.count(t) for t in new)
    return ImportSummary(tuple(groups), written, skipped, counted, (*names.warnings, *points.warnings))


def _silent(done: int, of: int) -> None:
    pass


# --- trials ---------------------------------------------------------------------------------------------------------------------


def _read_trials(table: Table, names: Names) -> list[_Trial]:
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
            contract.TAG_OBJECTIVE: names.safe(objective),
            contract.TAG_DIRECTION: _DIRECTIONS[direction],
            **_facts(_json(table, "extra", row, extras[row])),
        }
        if seeds[row] is not None:
            tags[contract.TAG_SEED] = str(seeds[row])
        logged = {
            names.safe(k): _text(v)[:MAX_VALUE] for k, v in _json(table, "params", row, params).items() if v is not None
        }
        trials.append(_Trial(row, study, trial, logged, tags, _STATUSES[status]))
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


def _text(value: Any) -> str:
    """A value as MLflow would log it: Python's own text, which for numbers loses nothing."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, list | dict) else str(value)


def _facts(extra: Mapping[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = {}
    rest: dict[str, Any] = {}
    length = 2
    for key, value in extra.items():
        if key in _FACTS and value is not None:
            tags[_FACTS[key]] = _text(value)[:MAX_VALUE]
        elif value is not None:
            length += len(json.dumps({key: value}))
            if length <= MAX_VALUE:
                rest[key] = value
    return {**tags, **({_TAG_EXTRA: json.dumps(rest)} if rest else {})}


def _experiment_tags(trials: Sequence[_Trial]) -> dict[str, str]:
    """What all trials of an experiment share of objective and direction."""
    tags = {}
    for tag in (contract.TAG_OBJECTIVE, contract.TAG_DIRECTION):
        values = {t.tags[tag] for t in trials}
        if len(values) == 1:
            tags[tag] = values.pop()
    return tags


def _run_names(trials: Sequence[_Trial]) -> dict[int, str]:
    """The run's name by the trial's row: the trial's, with the study before it where several studies have one of that name."""
    same = Counter(t.name for t in trials)
    return {t.row: (t.name if same[t.name] == 1 else f"{t.study}/{t.name}")[:250] for t in trials}


# --- curves ---------------------------------------------------------------------------------------------------------------------


class _Curves:
    """The points of the curves table, sorted by trial and metric once, then sliced."""

    def __init__(self, table: Table, trials: Sequence[_Trial], names: Names) -> None:
        rows = {(t.study, t.name): t.row for t in trials}
        row_of = _trial_rows(table, rows)
        metric, metrics = table.codes("metric")
        self._metrics = [names.safe(m.strip()) for m in metrics]
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

    def count(self, trial: _Trial) -> int:
        """How many points the trial has."""
        start, stop = np.searchsorted(self._row, [trial.row, trial.row + 1])
        return int(stop - start)

    def runs(self, trials: Sequence[_Trial], names: Mapping[int, str]) -> Iterator[NewRun]:
        """The trials as runs, named by `names`, one by one."""
        for trial in trials:
            started = _START_MS + 1000 * trial.row
            points, ended = self._points(trial.row, started)
            yield NewRun(
                source=(trial.study, trial.name),
                name=names[trial.row],
                status=trial.status,
                started_ms=started,
                ended_ms=None if trial.status == "RUNNING" else ended,
                params=trial.params,
                tags=trial.tags,
                points=points,
            )

    def _points(self, row: int, started_ms: int) -> tuple[dict[str, NewPoints], int | None]:
        start, stop = np.searchsorted(self._row, [row, row + 1])
        order, metric = self._order[start:stop], self._metric[start:stop]
        points: dict[str, NewPoints] = {}
        for code in np.unique(metric):
            of_metric = order[metric == code]
            points[self._metrics[code]] = NewPoints(
                steps=self._steps[of_metric],
                values=self._values[of_metric],
                times_ms=_times_ms(self._times[of_metric], started_ms),
            )
        seconds = self._times[order]
        seconds = seconds[np.isfinite(seconds)]
        return points, started_ms + round(float(seconds.max()) * 1000) if len(seconds) else None


def _trial_rows(table: Table, rows: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """The row in TRIALS of each point's trial, -1 without one."""
    study, studies = table.codes("study")
    trial, trials = table.codes("trial")
    pairs, which = np.unique(study * len(trials) + trial, return_inverse=True)
    found = [rows.get((studies[p // len(trials)].strip(), trials[p % len(trials)].strip()), -1) for p in pairs.tolist()]
    return np.array(found, dtype=np.int64)[which]


def _times_ms(seconds: FloatArray, started_ms: int) -> NDArray[np.int64]:
    """Timestamps. A point without a time gets its place in the order instead, in the first seconds of 1970: so MLflow keeps the
    order, and the analysis knows that there is no time (see `collect.UNTIMED_BEFORE_MS`).
    """
    known = np.isfinite(seconds) & (np.abs(seconds) < 1e10)
    timed = started_ms + np.round(np.where(known, seconds, 0.0) * 1000).astype(np.int64)
    return np.where(known, timed, np.arange(len(seconds), dtype=np.int64))
