"""Reads the columns of CSV, TSV and Parquet files in batches, with limits on memory."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from advisor.interop.importers import files
from advisor.model.errors import AdvisorError

CSV_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
MAX_POINTS = 50_000_000
"""Maximum points or rows in one file (1.2 GB of memory). Even a small Parquet file can contain billions of equal values."""
MAX_DECODED_BYTES = 8_000_000_000
"""Maximum size in bytes of all decompressed pages of a Parquet file. Only one batch of rows is in memory at a time."""
_MAX_CHUNK_BYTES = 1_000_000_000
"""Maximum decompressed size in bytes of one column in a row group of a Parquet file."""
_MAX_TEXT_BYTES = 64_000_000
"""Maximum decoded bytes of one text column in a batch of rows. A larger text column remains dictionary-encoded."""
_MAX_SKIPPED_ROWS = 10_000
_BLOCK_BYTES = 8 << 20
_CELLS_PER_BATCH = 4_000_000
_MAX_ROWS_PER_BATCH = 100_000


def is_json_lines(path: Path) -> bool:
    return path.suffix.lower() in (*JSON_LINES_SUFFIXES, ".json")


def column_names(path: Path) -> list[str]:
    """Return the file's column names. For a file of JSON lines, these are the keys of the first 100 rows."""
    if is_json_lines(path):
        rows = itertools.islice(files.read_objects(path), 100)
        return list(dict.fromkeys(key for row in rows for key in files.flatten_mapping(row, "/")))
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return [str(name) for name in _open_parquet(path).schema_arrow.names]
    return _csv_header(path)[0]


def first_row(path: Path) -> dict[str, Any]:
    """Return the non-empty cells of the first row, which identify the file, because a growing file keeps its first row."""
    if is_json_lines(path):
        return files.flatten_mapping(next(files.read_objects(path), {}), "/")
    for batch in read_batches(path):
        for row in batch.slice(0, 1).to_pylist():
            return {name: cell for name, cell in row.items() if cell is not None}
    return {}


def read_batches(path: Path, columns: Collection[str] = (), *, strict: bool = False) -> Iterator[Any]:
    """Yield the rows of the table as Arrow record batches: cells of a CSV file as text, empty cells as null, nested Parquet
    columns only if `columns` names them. strict: reject rows with a wrong number of cells, and accept line breaks in quoted
    cells. Raises AdvisorError for a damaged file."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _read_parquet(path, columns)
    return _read_csv(path, strict=strict)


def first_error_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0][:160]


def too_many_points_error(path: Path) -> AdvisorError:
    return AdvisorError(
        f"{files.printable_text(path)} holds more than {MAX_POINTS:,} points; split it by run and import each part"
    )


def _open_parquet(path: Path) -> Any:
    try:
        file = pa.parquet.ParquetFile(path, memory_map=False)
        _require_unique_names(path, file.schema_arrow.names)
        return file
    except (OSError, pa.ArrowException, ValueError) as error:
        raise AdvisorError(f"{files.printable_text(path)} is not a Parquet file: {first_error_line(error)}") from None


def _read_parquet(path: Path, columns: Collection[str]) -> Iterator[Any]:
    schema = _open_parquet(path).schema_arrow
    flat_columns = [field.name for field in schema if not pa.types.is_nested(field.type) or field.name in columns]
    text_columns = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    try:
        # Read text columns dictionary-encoded, because a few kilobytes of equal texts could fill the memory if decoded.
        file = pa.parquet.ParquetFile(path, read_dictionary=text_columns)
        _check_size(path, file.metadata)
        rows_per_batch = max(1, min(_MAX_ROWS_PER_BATCH, _CELLS_PER_BATCH // max(len(flat_columns), 1)))
        for batch in file.iter_batches(batch_size=rows_per_batch, columns=flat_columns, use_threads=False):
            batch.validate(full=True)
            decoded = list(batch.columns)
            for i, column in enumerate(decoded):
                if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type):
                    text_bytes = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
                    decoded[i] = column.dictionary_decode() if text_bytes < _MAX_TEXT_BYTES else column
            yield pa.RecordBatch.from_arrays(decoded, names=batch.schema.names)
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        raise AdvisorError(f"{files.printable_text(path)} is damaged: {first_error_line(error)}") from None


def _check_size(path: Path, metadata: Any) -> None:
    if metadata.num_rows > MAX_POINTS:
        raise AdvisorError(f"{files.printable_text(path)} holds {metadata.num_rows:,} rows; the limit is {MAX_POINTS:,}")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    if sum(sizes) > MAX_DECODED_BYTES or max(sizes, default=0) > _MAX_CHUNK_BYTES:
        raise AdvisorError(
            f"{files.printable_text(path)} unpacks to {sum(sizes) / 1e9:.3g} GB, {max(sizes) / 1e9:.3g} GB of them in one "
            f"column chunk; the limits are {MAX_DECODED_BYTES // 10**9} GB and {_MAX_CHUNK_BYTES // 10**9} GB"
        )


def _csv_header(path: Path) -> tuple[list[str], str]:
    with files.convert_read_errors(path), path.open("rb") as file:
        line = file.readline(1 << 20).decode("utf-8-sig", "replace").rstrip("\r\n")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;", key=line.count)
    try:
        header_names = next(csv.reader([line], delimiter=delimiter), []) if "\0" not in line else []
    except csv.Error:  # `csv` rejects a column name of more than 100,000 characters and an incomplete line break
        header_names = []
    if not header_names:
        raise AdvisorError(f"{files.printable_text(path)} is not a table: its first line must name the columns")
    _require_unique_names(path, header_names)
    return header_names, delimiter


def _require_unique_names(path: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise AdvisorError(f"{files.printable_text(path)} has the column {name!r} twice")


def _read_csv(path: Path, *, strict: bool) -> Iterator[Any]:
    names, delimiter = _csv_header(path)
    row_actions = itertools.chain(itertools.repeat("skip", _MAX_SKIPPED_ROWS), itertools.repeat("error"))
    handler = None if strict else lambda _row: next(row_actions)
    parse_options = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=strict, invalid_row_handler=handler)
    convert_options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=not strict,
    )
    for block in _csv_blocks(path, quoted_lines=strict):
        read_options = pa.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
        try:
            # Pass bytes instead of a file, because Arrow's threads can hang or abort the process at exit while they read a Python
            # file.
            table = pa.csv.read_csv(pa.BufferReader(block), read_options, parse_options, convert_options)
        except (OSError, pa.ArrowException) as error:
            if "Empty CSV" in str(error):  # Arrow rejects a block that contains only blank lines
                continue
            raise AdvisorError(f"{files.printable_text(path)} is not a CSV table: {first_error_line(error)}") from None
        yield from table.combine_chunks().to_batches()


def _csv_blocks(path: Path, *, quoted_lines: bool) -> Iterator[bytes]:
    """Yield the lines below the header as blocks of valid UTF-8. quoted_lines: whether quoted cells may contain line breaks."""
    with files.convert_read_errors(path), path.open("rb") as file:
        file.readline(files.MAX_LINE_BYTES)
        unread_bytes = b""
        while block := file.read(_BLOCK_BYTES):
            unread_bytes += block
            if quoted_lines:
                characters = np.frombuffer(unread_bytes, np.uint8)
                is_quoted = np.logical_xor.accumulate(characters == ord('"'))
                end = int(np.max(np.flatnonzero((characters == ord("\n")) & ~is_quoted), initial=-1)) + 1
            else:
                end = unread_bytes.rfind(b"\n") + 1
            if end:
                yield unread_bytes[:end].decode("utf-8", "replace").encode()
                unread_bytes = unread_bytes[end:]
            if len(unread_bytes) > files.MAX_LINE_BYTES:
                limit = files.MAX_LINE_BYTES // 1_000_000
                raise AdvisorError(f"{files.printable_text(path)} has a line longer than {limit} MB, or an unclosed quote")
        if unread_bytes:
            yield unread_bytes.decode("utf-8", "replace").encode()
