"""The sidecar is a Parquet table of all metric values of a run, in full resolution. The shipper process writes the table and
stores it as an artifact of the run.

    segment, acknowledged ──► part: sorted by metric and step, compressed ──┐
    segment, acknowledged ──► part ─────────────────────────────────────────┴─ end of the run ──► contract.SIDECAR_PATH

Each segment of the spool becomes a part during the training. Memory holds one segment, or one metric of one part, at a time. Each
conversion reads only files on disk, so it can be repeated after a crash.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from advisor import contract
from advisor_logging import spool
from advisor_logging.limits import MAX_EXACT_STEP, MAX_VALUE_CHARS

ROWS_PER_PARQUET_GROUP = 1 << 16
_BEGINS_KEY = b"advisor.begins"
"""Key in the Parquet metadata of a part; its value is the part's first training step, or the first evaluation if it has none."""


@dataclass(frozen=True, slots=True)
class SidecarSummary:
    rows: int
    from_step: int
    """First step from which the sidecar contains all points of the run; 0 if it contains the whole run."""
    to_step: int


class _MetricRowGroup(NamedTuple):
    """The rows of one metric in one part of the sidecar. Each metric has a separate Parquet row group."""

    part: Path
    row_group_index: int
    first_step: int
    last_step: int


def archive_segments(folder: Path, end: int) -> str | None:
    """Convert the delivered segments with numbers below `end` to parts of the sidecar. Return an error message, or None.

    A segment is deleted even if its conversion fails (full disk, no pyarrow), because the store already has its points.
    """
    error_message = None
    for number in spool.segment_numbers(folder):
        if number >= end:
            break
        try:
            _write_part(folder, number)
        except Exception as error:
            error_message = f"{type(error).__name__}: {error}"
            frames = [frame for frame in spool.read_segment(folder, spool.SpoolPosition(number)) if frame.kind != spool.EVENT]
            spool.record_dropped_steps(folder, max((int(step) for frame in frames for step in frame.columns()[0]), default=-1))
        spool.segment_path(folder, number).unlink(missing_ok=True)
    return error_message


def write_sidecar(folder: Path, path: Path, *, continued: bool = False) -> SidecarSummary | None:
    """Write all metric values of the finished run from its spool to `path`. Return None if the run has no metric values.

    `continued`: True if the run started before this spool was created. Raises OSError or pyarrow's errors.
    """
    import pyarrow.parquet as pq

    for number in spool.segment_numbers(folder):
        _write_part(folder, number)
    parts = spool.list_segment_parts(folder)
    if not parts:
        return None
    row_groups: dict[str, list[_MetricRowGroup]] = {}
    rows, first_steps = 0, []
    for part in parts:
        metadata = pq.read_metadata(part.path)
        rows += metadata.num_rows
        first_steps.append(int(metadata.metadata[_BEGINS_KEY]))
        for i in range(metadata.num_row_groups):
            metric, step = (metadata.row_group(i).column(column).statistics for column in (0, 1))
            row_groups.setdefault(metric.min, []).append(_MetricRowGroup(part.path, i, step.min, step.max))
    with _open_table(path) as table:
        _merge_row_groups(row_groups, table)
    from_step = spool.last_dropped_step(folder) + 1
    return SidecarSummary(rows, min(first_steps) if continued and not from_step else from_step, max(p.last_step for p in parts))


def _merge_row_groups(row_groups: Mapping[str, list[_MetricRowGroup]], table: Any) -> None:
    import pyarrow as pa

    collected_rows: list[Any] = []
    for name in sorted(row_groups):
        curve: Iterator[Any] = map(_read_row_group, row_groups[name])
        if any(earlier.last_step > later.first_step for earlier, later in pairwise(row_groups[name])):
            curve = iter([pa.concat_tables(curve).sort_by("step")])  # parts overlap, for example if an evaluation was late
        for rows in curve:
            collected_rows.append(rows)
            if sum(map(len, collected_rows)) >= ROWS_PER_PARQUET_GROUP:
                table.write_table(pa.concat_tables(collected_rows), 2 * ROWS_PER_PARQUET_GROUP)
                collected_rows = []
    if collected_rows:
        table.write_table(pa.concat_tables(collected_rows))


def _read_row_group(group: _MetricRowGroup) -> Any:
    import pyarrow.parquet as pq

    with pq.ParquetFile(group.part) as file:
        return file.read_row_group(group.row_group_index).replace_schema_metadata()


def _write_part(folder: Path, number: int) -> None:
    frames = [frame for frame in spool.read_segment(folder, spool.SpoolPosition(number)) if frame.kind != spool.EVENT]
    if not frames:
        return
    curves = list(_read_curves(frames))
    first_training_step = [int(frame.columns()[0][0]) for frame in frames if frame.kind == spool.STEPS][:1]
    first_step = min(first_training_step or [curve["step"][0].as_py() for curve in curves])
    path = spool.segment_part_path(folder, number, max(curve["step"][-1].as_py() for curve in curves))
    temporary_path = path.with_suffix(".new")
    try:
        with _open_table(temporary_path, {_BEGINS_KEY: str(first_step)}) as table:
            for curve in curves:
                table.write_table(curve, len(curve))
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise
    os.replace(temporary_path, path)
    for part in spool.list_segment_parts(folder):
        if part.segment == number and part.path != path:
            part.path.unlink()


def _read_curves(frames: Iterable[spool.SpoolFrame]) -> Iterator[Any]:
    """Yield one table per metric, in the order of steps; values at the same step stay in the order of recording."""
    import numpy as np
    import pyarrow as pa

    columns_by_metric: dict[str, tuple[array[float], array[float], array[float]]] = {}
    for frame in frames:
        steps, times, columns = frame.columns()
        for name, values in columns.items():
            known = columns_by_metric.setdefault(name, (array("d"), array("d"), array("d")))
            for column, new in zip(known, (steps, times, values), strict=True):
                column.extend(new)
    for name in sorted(columns_by_metric):
        step, time_ms, value = (np.frombuffer(column) for column in columns_by_metric.pop(name))
        row_order = np.argsort(step, kind="stable")
        step = step.clip(-MAX_EXACT_STEP, MAX_EXACT_STEP).astype(np.int64)
        metric = pa.repeat(name, len(row_order))
        yield pa.table([metric, step[row_order], time_ms[row_order].astype(np.int64), value[row_order]], schema=_table_schema())


@contextmanager
def _open_table(path: Path, metadata: Mapping[bytes, str] | None = None) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(
        path,
        _table_schema().with_metadata(metadata),
        compression="zstd",
        use_dictionary=["metric"],
        column_encoding={"step": "DELTA_BINARY_PACKED", "time_ms": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
    ) as table:
        yield table


def _table_schema() -> Any:
    import pyarrow as pa

    columns = [("metric", pa.string()), ("step", pa.int64()), ("time_ms", pa.int64()), ("value", pa.float64())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def is_continued_run(run: Mapping[str, Any]) -> bool:
    """Return whether the run started before this spool folder was created. run: content of `run.json`."""
    return bool(run.get("continues", run.get("run_id")))


def sidecar_name(run: Mapping[str, Any]) -> str:
    """Return the sidecar's file name. If the MLflow run is older than this spool, the name includes the spool's id, because the
    run may have several sidecars."""
    name = contract.SIDECAR_PATH.rpartition("/")[2]
    if not is_continued_run(run):
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{run.get('identity', run['spool'])}.{suffix}"


def updated_sidecar_tag(tag: str | None, path: str, summary: SidecarSummary) -> str:
    """Return the tag with an entry for this sidecar. If the text becomes too long, the oldest entries are dropped."""
    try:
        entries = [part for part in json.loads(tag or "{}")["parts"] if part["path"] != path]
    except (ValueError, KeyError, TypeError):
        entries = []
    entries.append({"path": path, "rows": summary.rows, "from_step": summary.from_step, "to_step": summary.to_step})
    while len(text := json.dumps({"parts": entries})) > MAX_VALUE_CHARS:
        entries.pop(0)
    return text
