"""Reads files with a row a step and a column a metric, CSV, JSON lines or Parquet, a piece at a time.

Of a row, an empty cell is no value, and `nan` is one. A cell that is no number is no value of a metric; a column of words that are
the same in every row is a parameter.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from advisor.interop.importers import files
from advisor.interop.importers.runs import START_MS, Curves, as_step, as_value
from advisor.model.errors import AdvisorError
from advisor.model.space import BoolArray, FloatArray

TABLES = (".csv", ".tsv", ".parquet", ".pq")
LINES = (".jsonl", ".ndjson")
_ALL_LINES = (*LINES, ".json")
_BLOCK_BYTES = 8 << 20
_DIGITS = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a file mean."""

    step: str | None = None
    """Holds the step; None: rows are counted."""
    time: str | None = None
    """Holds seconds or milliseconds since 1970, or seconds since the start."""
    run: str | None = None
    """Holds the name of the row's run; None: the file is one run."""
    params: frozenset[str] = frozenset()
    """Hold parameters, of which the first value counts."""
    metric: Callable[[str], str | None] = field(default=lambda name: name)
    """The metric's name for a column of any other name; None where it holds none."""
    blank_is_nan: bool = False
    """Whether an empty cell of a metric is a NaN that was logged, and not nothing."""


class Rows:
    """Gathers rows of one run: its points, and the words and parameters of its columns."""

    def __init__(self) -> None:
        self.curves = Curves()
        self.params: dict[str, Any] = {}
        self.rows = 0
        self._words: dict[str, str | None] = {}

    def word(self, column: str, text: str) -> None:
        """A cell that is no number: as long as a column says the same, it is a parameter."""
        if self._words.setdefault(column, text) != text:
            self._words[column] = None

    @property
    def all_params(self) -> dict[str, Any]:
        """The parameters, those among the columns of words included."""
        metrics = self.curves.metrics
        return {**{c: w for c, w in self._words.items() if w is not None and c not in metrics}, **self.params}


def columns_of(path: Path) -> list[str]:
    """The names of the file's columns, of JSON lines those of the first hundred rows; AdvisorError if it is no such file."""
    if path.suffix.lower() in _ALL_LINES:
        return list(dict.fromkeys(key for row in islice(files.rows(path), 100) for key in files.flat(row, "/")))
    if path.suffix.lower() in (".parquet", ".pq"):
        return [str(name) for name in _parquet(path).schema_arrow.names]
    return _header(path)[0]


def first_row(path: Path) -> dict[str, Any]:
    """The cells of the file's first row that are not empty: what stays as it is when the file grows."""
    if path.suffix.lower() in _ALL_LINES:
        return files.flat(next(files.rows(path), {}), "/")
    for table in _tables(path):
        for row in table.slice(0, 1).to_pylist():
            return {name: cell for name, cell in row.items() if cell is not None}
    return {}


def read_file(path: Path, layout: Layout, gathered: Callable[[str | None], Rows]) -> None:
    """Hand the file's rows to the `Rows` of their run, found by its name, or by None where the file is one run.

    AdvisorError names the file, and the row and column where there is one.
    """
    if path.suffix.lower() in _ALL_LINES:
        _read_lines(path, layout, gathered)
        return
    for table in _tables(path):
        for run, of_run in _by_run(table, layout.run, files.printable(path)):
            _add_table(gathered(run), of_run, layout, files.printable(path))


def read_rows(path: Path, layout: Layout) -> Rows:
    """The rows of a file that is one run."""
    rows = Rows()
    read_file(path, layout, lambda _: rows)
    return rows


# --- JSON lines -----------------------------------------------------------------------------------------------------------------


def _read_lines(path: Path, layout: Layout, gathered: Callable[[str | None], Rows]) -> None:
    name = files.printable(path)
    for number, row in enumerate(files.rows(path), 1):
        cells = files.flat(row, "/")
        run = None if layout.run is None else cells.get(layout.run)
        if layout.run is not None and run is None:
            continue
        rows = gathered(None if run is None else str(run))
        if layout.step is None:
            step = rows.rows
        elif cells.get(layout.step) is None:
            continue
        else:
            step = as_step(_unquoted(cells[layout.step]), f"{name}, row {number}, {layout.step!r}")
        rows.rows += 1
        seconds = as_value(cells.get(layout.time)) if layout.time else None
        time = None if seconds is None else _times(np.array([seconds]))[0]
        for column, cell in cells.items():
            _add_cell(rows, column, cell, step, time, layout)


def _add_cell(rows: Rows, column: str, cell: Any, step: int, time: int | None, layout: Layout) -> None:
    if column in (layout.step, layout.time, layout.run) or cell is None:
        return
    if column in layout.params:
        rows.params.setdefault(column, cell)
    elif (metric := layout.metric(column)) is not None:
        value = as_value(cell)
        if value is not None:
            rows.curves.add(metric, step, value, time)
        elif isinstance(cell, str):
            rows.word(metric, cell)


def _unquoted(cell: Any) -> Any:
    return float(cell) if isinstance(cell, str) and _DIGITS.fullmatch(cell.strip()) else cell


# --- tables ---------------------------------------------------------------------------------------------------------------------


def _header(path: Path) -> tuple[list[str], str]:
    """The names of a CSV file's columns, and what stands between its cells."""
    try:
        line = _first_bytes(path).decode("utf-8-sig", "replace").rstrip("\r\n")
    except OSError as error:
        raise AdvisorError(f"cannot read {files.printable(path)}: {_line(error)}") from None
    delimiter = _delimiter(path, line)
    try:
        names = next(csv.reader([line], delimiter=delimiter), []) if "\0" not in line else []
    except csv.Error:  # a name that is longer than a hundred thousand characters, or holds half a line break
        names = []
    if not names:
        raise AdvisorError(f"{files.printable(path)} is no table: its first line must name the columns")
    _require_different(path, names)
    return names, delimiter


def _require_different(path: Path, names: Sequence[str]) -> None:
    for name, times in Counter(names).most_common(1):
        if times > 1:
            raise AdvisorError(f"{files.printable(path)} has the column {name!r} twice")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(1 << 20)


def _delimiter(path: Path, header: str) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    return ";" if header.count(";") > header.count(",") else ","


def _parquet(path: Path) -> Any:
    try:
        file = pa.parquet.ParquetFile(path)
        _require_different(path, file.schema_arrow.names)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise AdvisorError(f"{files.printable(path)} is no Parquet file: {_line(error)}") from None
    return file


def _tables(path: Path) -> Iterator[Any]:
    """The file's rows in pieces, each a record batch."""
    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            yield from _parquet(path).iter_batches(batch_size=100_000)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise AdvisorError(f"{files.printable(path)} is damaged: {_line(error)}") from None
        return
    names, delimiter = _header(path)
    try:
        with (
            path.open("rb") as file,
            pa.csv.open_csv(
                files.Utf8(file),
                read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names, skip_rows=1),
                parse_options=pa.csv.ParseOptions(
                    delimiter=delimiter,
                    invalid_row_handler=_skip,  # the last one of a file that is still being written
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
                ),
            ) as reader,
        ):
            yield from reader
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise AdvisorError(f"{files.printable(path)} is no CSV table: {_line(error)}") from None
    except (OSError, pa.ArrowException) as error:
        raise AdvisorError(f"{files.printable(path)} is no CSV table: {_line(error)}") from None


def _skip(row: Any) -> str:  # noqa: ARG001 - the reader passes it
    return "skip"


def _by_run(table: Any, column: str | None, name: str) -> Iterator[tuple[str | None, Any]]:
    if column is None:
        yield None, table
        return
    cells = table.column(column)
    try:
        encoded = cells.cast(pa.string()).dictionary_encode()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise AdvisorError(f"{name}: the column {column!r} holds {cells.type}, which names no run") from None
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    for code, run in enumerate(encoded.dictionary.to_pylist()):
        yield run, table.filter(pa.array(codes == code))


def _add_table(rows: Rows, table: Any, layout: Layout, name: str) -> None:
    steps, known = _steps(rows, table, layout, name)
    times = np.full(len(steps), -1, dtype=np.int64)
    if layout.time is not None:
        seconds, there = _numbers(table.column(layout.time))
        times = np.where(there, _times(seconds), -1)
    rows.rows += len(steps)
    for column in table.schema.names:
        if column in (layout.step, layout.time, layout.run):
            continue
        cells = table.column(column)
        if column in layout.params:
            first = next((cell for cell in cells.to_pylist() if cell is not None), None)
            if first is not None:
                rows.params.setdefault(column, first)
            continue
        metric = layout.metric(column)
        if metric is None:
            continue
        values, there = _numbers(cells)
        there &= known
        if layout.blank_is_nan:
            there = known
        if there.any():
            rows.curves.extend(metric, steps[there], values[there], times[there])
        elif pa.types.is_string(cells.type):
            for word in cells.unique().to_pylist():
                if word is not None:
                    rows.word(metric, word)


def _steps(rows: Rows, table: Any, layout: Layout, name: str) -> tuple[NDArray[np.int64], BoolArray]:
    """The steps (n,), and which rows have one."""
    if layout.step is None:
        counted = np.arange(rows.rows, rows.rows + table.num_rows, dtype=np.int64)
        return counted, np.ones(table.num_rows, dtype=np.bool_)
    cells = table.column(layout.step)
    known = ~np.asarray(pc.fill_null(pc.is_null(cells, nan_is_null=True), True), dtype=np.bool_)
    for through in (cells.type, pa.float64()):  # "10", and then "10.0"
        try:
            whole = np.asarray(pc.fill_null(pc.cast(pc.cast(cells, through), pa.int64()), 0), dtype=np.int64)
            if through == cells.type or bool((np.abs(whole) < 2**53).all()):  # beyond, a float is no exact step
                return whole, known
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    steps = np.zeros(table.num_rows, dtype=np.int64)
    for i, cell in enumerate(cells.to_pylist()):
        if known[i]:
            text = cell.strip() if isinstance(cell, str) else cell
            number = _as_number(text)
            steps[i] = as_step(text if number is None else number, f"{name}, row {rows.rows + i + 1}, {layout.step!r}")
    return steps, known


def _as_number(cell: Any) -> float | int | None:
    if not isinstance(cell, str):
        return cell if isinstance(cell, int | float) else None
    try:
        return int(cell) if len(cell) < 400 and cell.lstrip("+-").isdigit() else float(cell)
    except ValueError:
        return None


def _numbers(cells: Any) -> tuple[FloatArray, BoolArray]:
    """The cells as numbers (n,), and which of them are."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return _numbers(cells.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return _numbers(pc.divide(cells.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64()), 1e6))
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            return np.full(len(cells), math.nan), np.zeros(len(cells), dtype=np.bool_)
        numbers = cells.cast(pa.float64(), safe=False)
        return np.array(pc.fill_null(numbers, math.nan)), ~np.asarray(pc.is_null(numbers), dtype=np.bool_)
    try:
        return _numbers(pc.utf8_trim_whitespace(cells).cast(pa.float64()))
    except pa.ArrowInvalid:
        found = [_as_number(cell.strip()) if cell is not None else None for cell in cells.to_pylist()]
        values = np.array([math.nan if n is None else as_value(n) for n in found], dtype=np.float64)
        return values, np.array([n is not None for n in found], dtype=np.bool_)


def _times(seconds: FloatArray) -> NDArray[np.int64]:
    """Milliseconds since 1970 (n,), -1 for no time: of seconds or milliseconds since 1970, or of seconds since a start."""
    with np.errstate(invalid="ignore"):
        in_ms = seconds >= 1e11
        since_1970 = np.where(in_ms, seconds, seconds * 1000)
        times = np.where(seconds >= 1e8, since_1970, START_MS + seconds * 1000)
        known = np.isfinite(seconds) & (seconds >= 0) & (times < 1e15)
    return np.where(known, np.round(np.where(known, times, 0)), -1).astype(np.int64)


def _line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0][:160]


# --- finding columns ------------------------------------------------------------------------------------------------------------


STEPS = (
    *("step", "global_step", "trainer/global_step", "training_iteration", "iteration", "iterations", "iter", "steps"),
    *("train_step", "training_step", "update", "updates", "batch", "epoch", "epochs"),
)
TIMES = ("timestamp", "wall_time", "time", "runtime", "time_s", "time_total_s", "elapsed", "elapsed_s", "seconds")
RUNS = ("run", "run_id", "run_name", "trial", "trial_id", "trial_name", "trial_number")


def find_column(columns: list[str], usual: tuple[str, ...]) -> str | None:
    """The column of the first of the `usual` names that there is, whatever its case and leading underscores."""
    known: Mapping[str, str] = {_plain(column): column for column in reversed(columns)}
    return next((known[name] for name in usual if name in known), None)


def _plain(column: str) -> str:
    return column.strip().lower().lstrip("_").replace(" ", "_")
