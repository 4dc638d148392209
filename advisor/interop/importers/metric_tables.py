"""Reads files of metrics in CSV, JSON lines or Parquet format, with one row per step and one column per metric. An empty cell
means a missing value; a cell with `nan` means that NaN was logged. A text column with the same text in all cells is a
parameter; other text columns are ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from advisor.interop.importers import files, table_files
from advisor.interop.importers.runs import DEFAULT_RUN_START_MS, UNKNOWN_TIME, RunCurves, convert_to_step, convert_to_value
from advisor.model.errors import AdvisorError
from advisor.model.space import BoolArray, FloatArray

STEP_COLUMNS = (
    *("step", "global_step", "trainer/global_step", "training_iteration", "iteration", "iterations", "iter", "steps"),
    *("train_step", "training_step", "update", "updates", "batch", "epoch", "epochs"),
)
"""Usual names of the column that contains the step, in order of preference."""
TIME_COLUMNS = ("timestamp", "wall_time", "time", "runtime", "time_s", "time_total_s", "elapsed", "elapsed_s", "seconds")
RUN_COLUMNS = ("run", "run_id", "run_name", "trial", "trial_id", "trial_name", "trial_number")
_DECIMAL_PATTERN = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?")


@dataclass(frozen=True, slots=True)
class TableLayout:
    step_column: str | None = None
    """Name of the step column, or None if the row number is the step."""
    time_column: str | None = None
    """Name of the time column: seconds or ms since 1970, or seconds since the start of the run."""
    run_column: str | None = None
    """Name of the column with run names, or None if the whole file is one run."""
    param_columns: frozenset[str] = frozenset()
    """Names of the columns with hyperparameters. A run's hyperparameter is the column's first value in the run."""
    metric_name: Callable[[str], str | None] = field(default=lambda name: name)
    """Function from a column to its metric or None, called for all columns that the other fields do not name."""
    blank_is_nan: bool = False
    """Whether an empty cell of a metric column is a logged NaN and not a missing value."""


class RunRows:
    """Metric points and parameters of one run, collected from the rows of a table."""

    def __init__(self) -> None:
        self.curves = RunCurves()
        self.params: dict[str, Any] = {}
        self.count = 0
        self._texts: dict[str, str | None] = {}

    def add_text(self, column: str, text: str) -> None:
        """Record the text of a cell. A text column is a parameter if all its cells are equal."""
        if self._texts.setdefault(column, text) != text:
            self._texts[column] = None

    @property
    def all_params(self) -> dict[str, Any]:
        metrics = self.curves.metrics
        return {**{c: t for c, t in self._texts.items() if t is not None and c not in metrics}, **self.params}


def find_usual_column(columns: list[str], usual_names: tuple[str, ...]) -> str | None:
    """Return the column with the first of the usual names, or None. Upper case and leading underscores are ignored."""
    normalised_columns = {column.strip().lower().lstrip("_").replace(" ", "_"): column for column in reversed(columns)}
    return next((normalised_columns[name] for name in usual_names if name in normalised_columns), None)


def read_runs(path: Path, layout: TableLayout) -> dict[str | None, RunRows]:
    """Return the rows by run name, or by None without a run column. An AdvisorError names the file, row and column."""
    runs: dict[str | None, RunRows] = {}
    point_count = 0
    for count in _add_objects(runs, path, layout) if table_files.is_json_lines(path) else _add_batches(runs, path, layout):
        point_count += count
        if point_count > table_files.MAX_POINTS:
            raise table_files.too_many_points_error(path)
    return runs


def read_run(path: Path, layout: TableLayout) -> RunRows:
    return read_runs(path, layout).get(None) or RunRows()


def _add_objects(runs: dict[str | None, RunRows], path: Path, layout: TableLayout) -> Iterator[int]:
    """Add the rows of a file of JSON lines to `runs`. For each row, yield its number of cells, the maximum number of its points."""
    name = files.printable_text(path)
    for number, row in enumerate(files.read_objects(path), 1):
        cells = files.flatten_mapping(row, "/")
        run = None if layout.run_column is None else cells.get(layout.run_column)
        if any(column is not None and cells.get(column) is None for column in (layout.run_column, layout.step_column)):
            continue
        rows = runs.setdefault(None if run is None else str(run), RunRows())
        step = rows.count
        if layout.step_column is not None:
            cell = cells[layout.step_column]
            number_cell = float(cell) if isinstance(cell, str) and _DECIMAL_PATTERN.fullmatch(cell.strip()) else cell
            step = convert_to_step(number_cell, f"{name}, row {number}, {layout.step_column!r}")
        rows.count += 1
        seconds = convert_to_value(cells.get(layout.time_column)) if layout.time_column else None
        time = None if seconds is None else _convert_times_to_ms(np.array([seconds]))[0]
        for column, cell in cells.items():
            if column in (layout.step_column, layout.time_column, layout.run_column) or cell is None:
                continue
            if column in layout.param_columns:
                rows.params.setdefault(column, cell)
            elif (metric := layout.metric_name(column)) is not None:
                if (value := convert_to_value(cell)) is not None:
                    rows.curves.add(metric, step, value, time)
                elif isinstance(cell, str):
                    rows.add_text(metric, cell)
        yield len(cells)


def _add_batches(runs: dict[str | None, RunRows], path: Path, layout: TableLayout) -> Iterator[int]:
    """Add the rows of a CSV or Parquet table to `runs`. For each batch of rows and each run, yield its number of points."""
    name = files.printable_text(path)
    for batch in table_files.read_batches(path, layout.param_columns):
        for run, of_run in _split_by_run(batch, layout.run_column, name):
            yield _add_batch(runs.setdefault(run, RunRows()), of_run, layout, name)


def _split_by_run(batch: Any, column: str | None, name: str) -> Iterator[tuple[str | None, Any]]:
    if column is None:
        yield None, batch
        return
    cells = _flat_column(batch, column, name)
    try:
        encoded_cells = cells if pa.types.is_dictionary(cells.type) else cells.cast(pa.string()).dictionary_encode()
        run_names = encoded_cells.dictionary.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise AdvisorError(f"{name}: the column {column!r} holds {cells.type}, not names of runs") from None
    run_codes = np.asarray(pc.fill_null(encoded_cells.indices, -1))
    for code in np.unique(run_codes[run_codes >= 0]).tolist():
        yield run_names[code], batch.filter(pa.array(run_codes == code))


def _flat_column(batch: Any, column: str, name: str) -> Any:
    if column not in batch.schema.names:
        raise AdvisorError(f"{name}: the column {column!r} holds nested values, not a step, a time or the name of a run")
    return batch.column(column)


def _add_batch(rows: RunRows, batch: Any, layout: TableLayout, name: str) -> int:
    steps, has_step = _row_steps(rows, batch, layout, name)
    times = np.full(len(steps), UNKNOWN_TIME, dtype=np.int64)
    if layout.time_column is not None:
        seconds, has_time = _cells_as_numbers(_flat_column(batch, layout.time_column, name))
        times = np.where(has_time, _convert_times_to_ms(seconds), UNKNOWN_TIME)
    rows.count += len(steps)
    point_count = 0
    for column in batch.schema.names:
        if column in (layout.step_column, layout.time_column, layout.run_column):
            continue
        cells = batch.column(column)
        if column in layout.param_columns:
            first_cell = next((cell.as_py() for cell in cells if cell.is_valid), None)
            if first_cell is not None:
                rows.params.setdefault(column, first_cell)
        elif (metric := layout.metric_name(column)) is not None:
            values, is_number = _cells_as_numbers(cells)
            is_point = has_step if layout.blank_is_nan else is_number & has_step
            if is_point.any():
                rows.curves.extend(metric, steps[is_point], values[is_point], times[is_point])
                point_count += int(is_point.sum())
            elif any(test(cells.type) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)):
                for text in cells.drop_null().unique().to_pylist():
                    rows.add_text(metric, text)
    return point_count


def _row_steps(rows: RunRows, batch: Any, layout: TableLayout, name: str) -> tuple[NDArray[np.int64], BoolArray]:
    """Return two arrays of shape (n,): the step of each row, and a mask of the rows that have a step."""
    if layout.step_column is None:
        row_numbers = np.arange(rows.count, rows.count + batch.num_rows, dtype=np.int64)
        return row_numbers, np.ones(batch.num_rows, dtype=np.bool_)
    cells = _flat_column(batch, layout.step_column, name)
    has_step = ~np.asarray(pc.fill_null(pc.is_null(cells, nan_is_null=True), True), dtype=np.bool_)
    for number_type in (cells.type, pa.float64()):  # cells of text may contain an integer as "10" or as "10.0"
        try:
            integers = np.asarray(pc.fill_null(pc.cast(pc.cast(cells, number_type), pa.int64()), 0), dtype=np.int64)
            # an integer of 2**53 or more may be wrong if it was read as a float
            if number_type == cells.type or bool((np.abs(integers) < 2**53).all()):
                return integers, has_step
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    steps = np.zeros(batch.num_rows, dtype=np.int64)
    for i, cell in enumerate(cells.to_pylist()):
        if has_step[i]:
            cell_text = cell.strip() if isinstance(cell, str) else cell
            parsed_cell = _convert_to_number(cell_text)
            cell_location = f"{name}, row {rows.count + i + 1}, {layout.step_column!r}"
            steps[i] = convert_to_step(cell_text if parsed_cell is None else parsed_cell, cell_location)
    return steps, has_step


def _convert_to_number(cell: Any) -> float | int | None:
    if not isinstance(cell, str):
        return cell if isinstance(cell, int | float) else None
    try:
        return int(cell) if len(cell) < 400 and cell.lstrip("+-").isdigit() else float(cell)
    except ValueError:
        return None


def _cells_as_numbers(cells: Any) -> tuple[FloatArray, BoolArray]:
    """Return two arrays of shape (n,): the cells as numbers, and a mask of the cells that are numbers."""
    cell_type = cells.type
    if pa.types.is_dictionary(cell_type):
        values, known = _cells_as_numbers(cells.dictionary)
        indices = np.asarray(pc.fill_null(cells.indices, len(values)))  # a null cell gets the index of the appended NaN
        return np.append(values, math.nan)[indices], np.append(known, False)[indices]
    if pa.types.is_timestamp(cell_type):
        return _cells_as_numbers(pc.divide(cells.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64()), 1e6))
    if not (pa.types.is_string(cell_type) or pa.types.is_large_string(cell_type)):
        if not (pa.types.is_integer(cell_type) or pa.types.is_floating(cell_type) or pa.types.is_decimal(cell_type)):
            return np.full(len(cells), math.nan), np.zeros(len(cells), dtype=np.bool_)
        floats = cells.cast(pa.float64(), safe=False)
        return np.array(pc.fill_null(floats, math.nan)), ~np.asarray(pc.is_null(floats), dtype=np.bool_)
    try:
        return _cells_as_numbers(pc.utf8_trim_whitespace(cells).cast(pa.float64()))
    except pa.ArrowInvalid:
        numbers_or_none = [_convert_to_number(cell.strip()) if cell is not None else None for cell in cells.to_pylist()]
        values = np.array([math.nan if n is None else convert_to_value(n) for n in numbers_or_none], dtype=np.float64)
        return values, np.array([n is not None for n in numbers_or_none], dtype=np.bool_)


def _convert_times_to_ms(seconds: FloatArray) -> NDArray[np.int64]:
    """Convert times in s or ms since 1970, or in s since the run's start, to ms since 1970; implausible ones to `UNKNOWN_TIME`."""
    with np.errstate(invalid="ignore"):
        is_ms = seconds >= 1e11
        epoch_ms = np.where(is_ms, seconds, seconds * 1000)
        times = np.where(seconds >= 1e8, epoch_ms, DEFAULT_RUN_START_MS + seconds * 1000)
        is_plausible = np.isfinite(seconds) & (seconds >= 0) & (times < 1e15)
    return np.where(is_plausible, np.round(np.where(is_plausible, times, 0)), UNKNOWN_TIME).astype(np.int64)


def constant_metrics(runs: Mapping[str | None, RunRows]) -> list[str]:
    """Return the metrics that are constant within each run but differ between runs. Such a metric may be a hyperparameter."""
    constants: dict[str, set[float]] = {}
    varying_metrics: set[str] = set()
    for rows in runs.values():
        for metric, values in rows.curves.values():
            low = float(values.min())
            if low == values.max() and len(values) > 1 and math.isfinite(low):
                constants.setdefault(metric, set()).add(low)
            else:
                varying_metrics.add(metric)
    return [name for name, values in constants.items() if name not in varying_metrics and len(values) > 1]
