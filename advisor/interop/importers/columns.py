"""Reads tidy tables, Parquet or CSV, column by column with the types that they must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from advisor.interop.importers import files
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray

Kind = Literal["text", "integer", "number"]


class Table:
    """The columns of one file that were asked for, each as text or float64; rows are counted from 1, without the header."""

    def __init__(self, path: Path, required: Mapping[str, Kind], optional: Mapping[str, Kind]) -> None:
        """Read `path`; AdvisorError names the file, and the column and row where there is one, if it is not such a table."""
        self.path = path
        table = _read(path)
        missing = [name for name in required if name not in table.column_names]
        if missing:
            present = ", ".join(table.column_names) or "none"
            raise AdvisorError(f"{path} lacks the column {missing[0]!r}; its columns are: {present}")
        self.rows: int = table.num_rows
        wanted = {**required, **{name: kind for name, kind in optional.items() if name in table.column_names}}
        self._columns = {name: self._column(table[name], name, kind) for name, kind in wanted.items()}

    def error(self, column: str, row: int, problem: str) -> AdvisorError:
        """An error in one cell; `row` is 0-based here and said 1-based."""
        return AdvisorError(f"{self.path}, column {column!r}, row {row + 1}: {problem}")

    def text(self, column: str) -> list[str | None]:
        """A text column, shape (rows,); all None if the table has no such column."""
        found: list[str | None] = self._columns[column].to_pylist() if column in self._columns else [None] * self.rows
        return found

    def numbers(self, column: str) -> FloatArray:
        """A number column, shape (rows,); NaN where the cell is empty or the table has no such column."""
        if column not in self._columns:
            return np.full(self.rows, np.nan)
        return np.array(pc.fill_null(self._columns[column], math.nan), dtype=np.float64)

    def integers(self, column: str) -> NDArray[np.int64]:
        """A column of whole numbers without empty cells, shape (rows,)."""
        self.require_full(column)
        return np.array(self._columns[column], dtype=np.int64)

    def optional_integers(self, column: str) -> list[int | None]:
        """A column of whole numbers that may be empty, shape (rows,)."""
        found: list[int | None] = self._columns[column].to_pylist() if column in self._columns else [None] * self.rows
        return found

    def codes(self, column: str) -> tuple[NDArray[np.int64], list[str]]:
        """A text column without empty cells as indices (rows,) into its distinct values."""
        self.require_full(column)
        encoded = self._columns[column].combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        return np.array(encoded.indices, dtype=np.int64), encoded.dictionary.to_pylist()

    def require_full(self, column: str) -> None:
        """AdvisorError that names the first empty cell, if the column has one."""
        values = self._columns[column]
        if values.null_count:
            raise self.error(column, pc.index(pc.is_null(values), True).as_py(), "the cell is empty")

    def _column(self, values: Any, name: str, kind: Kind) -> Any:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        cells = values
        target = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64()}[kind]
        try:
            if kind == "text":
                return values.cast(target)
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                values = _emptied(values)
            if kind == "integer" and not pa.types.is_integer(values.type):
                values = _without_nan(
                    values.cast(pa.float64())
                )  # "42.0", as pandas writes whole numbers beside empty cells
            return values.cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._bad_cell(cells, name, kind) from None

    def _bad_cell(self, values: Any, name: str, kind: Kind) -> AdvisorError:
        wanted = {"text": "text", "integer": "a whole number", "number": "a number"}[kind]
        for row, value in enumerate(values.to_pylist()):
            try:
                number = None if value is None else float(value)
                whole = number is None or math.isnan(number) or number.is_integer()
                fine, large = kind == "number" or whole, number is not None and abs(number) >= 2**63
            except OverflowError:
                fine, large = kind == "integer", True
            except (TypeError, ValueError):
                fine, large = False, False
            if not fine:
                return self.error(name, row, f"{str(value)[:60]!r} is not {wanted}")
            if kind == "integer" and large:
                return self.error(name, row, f"{str(value)[:60]!r} is too large; a whole number here ends before 2^63")
        return AdvisorError(f"{self.path}, column {name!r}: holds {values.type}, not {wanted}")


def _read(path: Path) -> Any:
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pa.parquet.ParquetFile(path).read()
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            return _read_csv(path)
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {_first_line(error)}") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise AdvisorError(f"{path} is not a {path.suffix[1:]} table: {_first_line(error)}") from error
    raise AdvisorError(f"{path} is neither a .parquet nor a .csv file")


def _read_csv(path: Path) -> Any:
    """All cells as text, an unquoted empty one as none: what a column means is known here, not to be guessed from its cells."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline()
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    names = [name.strip().strip('"') for name in header.strip().split(delimiter)]
    with path.open("rb") as file:
        return pa.csv.read_csv(
            files.Utf8(file),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _emptied(values: Any) -> Any:
    trimmed = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)


def _without_nan(values: Any) -> Any:
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _first_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0][:200]
