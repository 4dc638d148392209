"""Imports a table of trials and a table of their curves, and creates one MLflow experiment for each study. TRIALS has the
columns study, trial, params (JSON object), status, objective and direction (min, max, minimize or maximize), and optionally
seed and extra (JSON object of facts). CURVES has study, trial, metric, step, value, and optionally time_s (seconds since the
start of the trial)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from advisor import contract
from advisor.interop.importers import files, table_files
from advisor.interop.importers.mlflow_runs import MAX_VALUE_CHARACTERS, param_text
from advisor.interop.importers.runs import DEFAULT_RUN_START_MS, UNKNOWN_TIME, RunContent, RunCurves, RunList, SourceRun
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus

CellType = Literal["text", "integer", "number"]
_CELL_TYPE_NAMES: Mapping[CellType, str] = {"text": "text", "integer": "a whole number", "number": "a number"}
_TRIAL_COLUMNS: Mapping[str, CellType] = dict.fromkeys(("study", "trial", "params", "status", "objective", "direction"), "text")
_POINT_COLUMNS: dict[str, CellType] = {"study": "text", "trial": "text", "metric": "text", "step": "integer", "value": "number"}
_MAX_TABLE_TRIALS = 1_000_000
_MAX_TABLE_CHARACTERS = 200_000_000
_RUN_STATUSES: Mapping[str, RunStatus] = {
    "complete": "FINISHED",
    "diverged": "FINISHED",
    "stopped": "KILLED",
    "infeasible": "FAILED",
    "no_data": "FAILED",
    "running": "RUNNING",
}
_DIRECTION_BY_WORD = {"min": "minimize", "max": "maximize", "minimize": "minimize", "maximize": "maximize"}
_FACT_TAGS = (
    *(contract.TAG_MAX_TRAIN_STEPS, contract.TAG_BATCH_SIZE, contract.TAG_OPTIMIZER, contract.TAG_NORM_LAYERS),
    *(contract.TAG_MODEL_PARAMETERS, contract.TAG_GRAD_CLIP, contract.TAG_CHECKPOINTS, contract.TAG_COMMAND),
    *(contract.TAG_GIT_COMMIT, contract.TAG_DEVICE, contract.TAG_STEP_UNIT),
    *(contract.TAG_PREFIX + key for key in ("n_train", "n_valid", "n_test", "steps_per_epoch")),
    *(contract.TAG_PREFIX + key for key in ("stop_reason", "step_hint", "train_thin", "licence")),
)
_TAG_BY_FACT = {"planned_steps": contract.TAG_MAX_TRAIN_STEPS, **{t.removeprefix(contract.TAG_PREFIX): t for t in _FACT_TAGS}}
"""Tags of known keys in the column `extra`. All other keys are stored in one common tag."""


@dataclass(frozen=True, slots=True)
class TidyTables:
    """Imports tables whose cells are all validated before anything is written. An AdvisorError names the file, column and row."""

    curves: Path

    def find_runs(self, source: str | Path) -> RunList:
        trials = _read_trials(Path(source))
        points = _SortedPoints(self.curves, trials)

        def source_run(trial: _TrialRow) -> SourceRun:
            aim = {tag: trial.tags[tag] for tag in (contract.TAG_OBJECTIVE, contract.TAG_DIRECTION)}
            run_identity = (trial.study, trial.name)
            return SourceRun(trial.name, run_identity, trial.study, lambda: points.content(trial), experiment_tags=aim)

        return RunList([source_run(trial) for trial in trials], points.notes)


@dataclass(frozen=True, slots=True)
class _TrialRow:
    row: int
    study: str
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    status: RunStatus


def _read_trials(path: Path) -> list[_TrialRow]:
    table = _TypedTable(path, _TRIAL_COLUMNS, {"seed": "integer", "extra": "text"})
    first_rows: dict[tuple[str, str], int] = {}
    trials = []
    character_count = 0
    for start, columns in table.batches(required_columns=set(_TRIAL_COLUMNS) - {"params"}):
        rows = zip(*(columns[name] for name in (*_TRIAL_COLUMNS, "seed", "extra")), strict=True)
        for row, cells in enumerate(rows, start):
            texts = [cell.as_py() for cell in cells]
            character_count += len(texts[2] or "") + len(texts[-1] or "")
            if character_count > _MAX_TABLE_CHARACTERS or row >= _MAX_TABLE_TRIALS:
                raise AdvisorError(
                    f"{path} exceeds {_MAX_TABLE_TRIALS:,} trials or {_MAX_TABLE_CHARACTERS:,} characters of parameters"
                )
            trial = _parse_trial(table, row, texts)
            first_row = first_rows.setdefault((trial.study, trial.name), row)
            if first_row != row:
                raise table.error("trial", row, f"{trial.name!r} of study {trial.study!r} is already in row {first_row + 1}")
            trials.append(trial)
    if not trials:
        raise AdvisorError(f"{path} contains no trials")
    return trials


def _parse_trial(table: _TypedTable, row: int, cells: Sequence[Any]) -> _TrialRow:
    study, trial, params, status, objective, direction = ((cell or "").strip() for cell in cells[:6])
    seed, extra = cells[6:]
    for column, name in (("study", study), ("trial", trial), ("objective", objective)):
        if not name:
            raise table.error(column, row, "the cell is empty")
    for column, value, allowed in (("status", status, _RUN_STATUSES), ("direction", direction, _DIRECTION_BY_WORD)):
        if value not in allowed:
            raise table.error(column, row, f"{value!r} is none of {', '.join(allowed)}")
    tags = {
        contract.TAG_STUDY: study[:MAX_VALUE_CHARACTERS],
        contract.TAG_STATUS: status,
        contract.TAG_OBJECTIVE: objective,
        contract.TAG_DIRECTION: _DIRECTION_BY_WORD[direction],
        **_fact_tags(_json_object(table, "extra", row, extra)),
    }
    if seed is not None:
        tags[contract.TAG_SEED] = str(seed)
    return _TrialRow(row, study, trial, _json_object(table, "params", row, params), tags, _RUN_STATUSES[status])


def _json_object(table: _TypedTable, column: str, row: int, text: str | None) -> dict[str, Any]:
    if not text or not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise table.error(column, row, f"is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise table.error(column, row, f"must be a JSON object such as {{}}, not {text[:60]}")
    return parsed


def _fact_tags(extra_facts: Mapping[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = {}
    other_facts: dict[str, Any] = {}
    json_length = 2
    for key, value in extra_facts.items():
        if key in _TAG_BY_FACT and value is not None:
            tags[_TAG_BY_FACT[key]] = param_text(value)
        elif value is not None:
            json_length += len(json.dumps({key: value}))
            if json_length <= MAX_VALUE_CHARACTERS:
                other_facts[key] = value
    return {**tags, **({contract.TAG_PREFIX + "extra": json.dumps(other_facts)} if other_facts else {})}


class _SortedPoints:
    def __init__(self, path: Path, trials: Sequence[_TrialRow]) -> None:
        row_of_trial = {(t.study, t.name): t.row for t in trials}
        self._metrics: dict[str, int] = {}
        column_batches: list[tuple[NDArray[Any], ...]] = []
        total_count = kept_count = 0
        table = _TypedTable(path, _POINT_COLUMNS, {"time_s": "number"})
        for _, columns in table.batches(required_columns=set(_POINT_COLUMNS) - {"value"}):
            trial = _trial_rows(columns, row_of_trial)
            names, codes = _encode_texts(columns["metric"])
            metric = np.array([self._metrics.setdefault(m.strip(), len(self._metrics)) for m in names])[codes]
            number_columns = [np.array(pc.fill_null(columns[c], math.nan), dtype=np.float64) for c in ("value", "time_s")]
            columns_of_points = (trial, metric, np.array(columns["step"], dtype=np.int64), *number_columns)
            column_batches.append(tuple(column[trial >= 0] for column in columns_of_points))
            total_count, kept_count = total_count + len(trial), kept_count + len(column_batches[-1][0])
            if total_count > table_files.MAX_POINTS:
                raise table_files.too_many_points_error(path)
        empty_columns = (np.empty(0, np.int64),) * 3 + (np.empty(0),) * 2
        joined_columns = [np.concatenate(column) for column in zip(*(column_batches or [empty_columns]), strict=True)]
        point_order = np.lexsort((joined_columns[1], joined_columns[0]))
        self._trial, self._metric, self._steps, self._values, self._times = (column[point_order] for column in joined_columns)
        self.notes = []
        if total_count > kept_count:
            self.notes.append(f"{total_count - kept_count:,} points in {path} belong to no trial and are left out.")
        if not kept_count:
            self.notes.append(f"No trial has a point: {path} holds none{' of these trials' if total_count else ''}.")

    def content(self, trial: _TrialRow) -> RunContent:
        # Tables have no dates, so trials start one second apart in table order.
        started_ms = DEFAULT_RUN_START_MS + 1000 * trial.row
        start, stop = np.searchsorted(self._trial, [trial.row, trial.row + 1])
        metric_names = list(self._metrics)
        curves = RunCurves()
        seconds = self._times[start:stop]
        has_time = np.isfinite(seconds) & (np.abs(seconds) < 1e10)
        offsets = np.round(np.where(has_time, seconds, 0.0) * 1000).astype(np.int64)
        times = np.where(has_time, started_ms + offsets, UNKNOWN_TIME)
        for code in np.unique(self._metric[start:stop]):
            low, high = np.searchsorted(self._metric[start:stop], [code, code + 1])
            steps, values = (column[start + low : start + high] for column in (self._steps, self._values))
            curves.extend(metric_names[code], steps, values, times[low:high])
        return RunContent(curves.points(), trial.params, trial.tags, trial.status, started_ms)


def _trial_rows(columns: Mapping[str, Any], rows: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """Return, for each point, the row of its trial in the table of trials, shape (points,), or -1 if the table lacks the trial."""
    studies, study = _encode_texts(columns["study"])
    trials, trial = _encode_texts(columns["trial"])
    pairs, positions = np.unique(study * len(trials) + trial, return_inverse=True)
    trial_names = ((studies[p // len(trials)].strip(), trials[p % len(trials)].strip()) for p in pairs.tolist())
    return np.array([rows.get(name, -1) for name in trial_names], dtype=np.int64)[positions]


def _encode_texts(cells: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column, and the index of each row's text, shape (rows,)."""
    encoded_cells = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
    return encoded_cells.dictionary.to_pylist(), np.array(encoded_cells.indices, dtype=np.int64)


class _TypedTable:
    def __init__(self, path: Path, required_columns: Mapping[str, CellType], optional_columns: Mapping[str, CellType]) -> None:
        if path.suffix.lower() not in table_files.TABLE_SUFFIXES:
            raise AdvisorError(f"{path} is neither a .parquet nor a .csv file")
        self.path = files.require_existing_path(path, "a table")
        names = table_files.column_names(path)
        missing_columns = [name for name in required_columns if name not in names]
        if missing_columns:
            raise AdvisorError(f"{path} lacks the column {missing_columns[0]!r}; its columns are: {', '.join(names)}")
        self._types = {**required_columns, **optional_columns}

    def batches(self, *, required_columns: set[str]) -> Any:
        """For each batch of rows, yield the index of its first row and its columns with converted types."""
        first_row = 0
        for batch in table_files.read_batches(self.path, strict=True):
            columns = {}
            for name, kind in self._types.items():
                cells = batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)
                columns[name] = self._convert_column(cells, name, kind, first_row)
                if name in required_columns and columns[name].null_count:
                    raise self.error(name, first_row + pc.index(pc.is_null(columns[name]), True).as_py(), "the cell is empty")
            yield first_row, columns
            first_row += batch.num_rows

    def error(self, column: str, row: int, problem: str) -> AdvisorError:
        return AdvisorError(f"{self.path}, column {column!r}, row {row + 1}: {problem}")

    def _convert_column(self, cells: Any, name: str, kind: CellType, start: int) -> Any:
        arrow_type = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64()}[kind]
        if pa.types.is_dictionary(cells.type):
            if pa.types.is_string(cells.type.value_type):  # the text is too large to decode in one piece
                if kind == "text":
                    return cells
                raise self._first_invalid_cell(cells, name, kind, start)
            cells = cells.dictionary_decode()
        clean_cells = cells
        try:
            if kind != "text" and (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
                trimmed_cells = pc.utf8_trim_whitespace(cells.cast(pa.string()))
                clean_cells = pc.if_else(pc.equal(trimmed_cells, ""), pa.scalar(None, pa.string()), trimmed_cells)
            if kind == "integer" and not pa.types.is_integer(clean_cells.type):
                floats = clean_cells.cast(pa.float64())  # pandas writes 42 as "42.0" if a column has empty cells
                clean_cells = pc.if_else(pc.is_nan(floats), pa.scalar(None, pa.float64()), floats)
            return clean_cells.cast(arrow_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._first_invalid_cell(cells, name, kind, start) from None

    def _first_invalid_cell(self, cells: Any, name: str, kind: CellType, start: int) -> AdvisorError:
        for row, cell in enumerate(cells, start):
            value = cell.as_py()
            try:
                cell_number = None if value is None else float(value)
                is_whole = cell_number is None or math.isnan(cell_number) or cell_number.is_integer()
                fits, too_large = kind == "number" or is_whole, cell_number is not None and abs(cell_number) >= 2**63
            except OverflowError:
                fits, too_large = kind == "integer", True
            except (TypeError, ValueError):
                fits, too_large = False, False
            if not fits:
                return self.error(name, row, f"{str(value)[:60]!r} is not {_CELL_TYPE_NAMES[kind]}")
            if kind == "integer" and too_large:
                return self.error(name, row, f"{str(value)[:60]!r} is too large; whole numbers must be below 2^63")
        return AdvisorError(f"{self.path}, column {name!r}: contains {cells.type}, not {_CELL_TYPE_NAMES[kind]}")
