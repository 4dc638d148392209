"""The sidecar is a Parquet table of all metric values of a run, in full resolution. The shipper process writes the table and
stores it as an artifact of the run.

    segment, acknowledged ──► part: sorted by metric and step, compressed ──┐
    segment, acknowledged ──► part ─────────────────────────────────────────┴─ end of the run ──► contract.SIDECAR_PATH

Parts of the table are written during the training, one per segment of the spool, and merged at the end of the run. Memory holds
at most one segment and one Parquet row group at a time. Each conversion reads only files on disk, so it can be repeated after a
crash.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advisor import contract
from advisor_logging.limits import MAX_EXACT_STEP, MAX_VALUE_CHARS
from advisor_logging.spool import (
    EVENT,
    STEPS,
    SpoolFrame,
    SpoolPosition,
    last_dropped_step,
    list_segment_parts,
    read_segment,
    record_dropped_steps,
    segment_numbers,
    segment_part_path,
    segment_path,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS_PER_PARQUET_GROUP = 1 << 16
_PART_INDEX_KEY = b"advisor.curves"
"""Key in the Parquet metadata of a sidecar part; its value is the part's `SidecarPartIndex` as JSON."""

CurveRowPosition = tuple[str, int, int, int, int]
"""Position of one metric's rows in a sidecar part: (metric, first row, number of rows, first step, last step)."""


class SidecarPartIndex(NamedTuple):
    """Table of contents of a sidecar part: the position of each metric's rows."""

    curves: list[CurveRowPosition]
    begins: int
    """First training step in the sidecar part; if it contains only evaluations, the step of the first evaluation."""


class MetricCurve(NamedTuple):
    """Values of one metric in ascending order of steps; all arrays have shape (n,)."""

    name: str
    steps: NDArray[np.int64]
    times: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SidecarSummary:
    rows: int
    from_step: int
    """First step from which the sidecar contains all points of the run; 0 if it contains the whole run."""
    to_step: int


def archive_segments(folder: Path, end: int) -> str | None:
    """Convert the delivered segments with numbers below `end` to parts of the sidecar. Return an error message if converting a
    segment failed, else None.

    A segment is deleted even if its conversion fails (full disk, no pyarrow), because the store already has its points.
    """
    problem = None
    for number in segment_numbers(folder):
        if number >= end:
            break
        try:
            _write_part(folder, number)
            segment_path(folder, number).unlink(missing_ok=True)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            last = max((_last_step(f) for f in read_segment(folder, SpoolPosition(number)) if f.kind != EVENT), default=-1)
            segment_path(folder, number).unlink(missing_ok=True)
            record_dropped_steps(folder, last)
    return problem


def write_sidecar(folder: Path, path: Path, *, continued: bool = False) -> SidecarSummary | None:
    """Write all metric values of the finished run from its spool to `path`. Return None if the run has no metric values.

    `continued`: True if the run started before this spool was created. Raises OSError or pyarrow's errors.
    """
    for number in segment_numbers(folder):
        _write_part(folder, number)
    made = [part.path for part in list_segment_parts(folder)]
    if not made:
        return None
    indices = [_read_index(part) for part in made]
    if len(made) == 1:
        shutil.copyfile(made[0], path)
    else:
        _merge_parts(made, [index.curves for index in indices], path)
    places = [place for index in indices for place in index.curves]
    from_step = last_dropped_step(folder) + 1
    if continued and not from_step:
        from_step = min(index.begins for index in indices)
    return SidecarSummary(sum(count for _, _, count, _, _ in places), from_step, max(last for *_, last in places))


def _last_step(frame: SpoolFrame) -> int:
    return max((int(step) for step in frame.columns()[0]), default=-1)


def _write_part(folder: Path, number: int) -> None:
    """Convert a segment of the spool to a part of the sidecar table. If an earlier attempt left a part of the same segment, the
    new part replaces it."""
    frames = [frame for frame in read_segment(folder, SpoolPosition(number)) if frame.kind != EVENT]
    if not frames:
        return
    curves, first = _gather_curves(frames), 0
    places: list[CurveRowPosition] = []
    for curve in curves:
        places.append((curve.name, first, len(curve.steps), int(curve.steps[0]), int(curve.steps[-1])))
        first += len(curve.steps)
    trained = [int(frame.columns()[0][0]) for frame in frames if frame.kind == STEPS][:1]
    index = SidecarPartIndex(places, min(trained or [low for _, _, _, low, _ in places]))
    path = segment_part_path(folder, number, max(last for *_, last in places))
    temporary = path.with_suffix(".new")
    try:
        with _open_curve_writer(temporary, json.dumps(index).encode()) as table:
            for curve in curves:
                table.add(curve)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    for part in list_segment_parts(folder):
        if part.segment == number and part.path != path:
            part.path.unlink()


def _gather_curves(frames: Iterable[SpoolFrame]) -> list[MetricCurve]:
    """Return the values in the frames, as one curve per metric. Values of one metric at the same step stay in the order in
    which they were recorded."""
    import numpy as np

    gathered: dict[str, tuple[array[float], array[float], array[float]]] = {}
    for frame in frames:
        steps, times, columns = frame.columns()
        for name, values in columns.items():
            mine = gathered.setdefault(name, (array("d"), array("d"), array("d")))
            mine[0].extend(steps)
            mine[1].extend(times)
            mine[2].extend(values)
    curves = []
    for name in sorted(gathered):
        steps_, times_, values_ = (np.frombuffer(column, dtype=np.float64) for column in gathered.pop(name))
        steps_ = steps_.clip(-MAX_EXACT_STEP, MAX_EXACT_STEP)  # earlier versions wrote larger step numbers
        curves.append(_sort_by_step(MetricCurve(name, steps_.astype(np.int64), times_.astype(np.int64), values_)))
    return curves


def _sort_by_step(curve: MetricCurve) -> MetricCurve:
    import numpy as np

    if (curve.steps[1:] >= curve.steps[:-1]).all():
        return curve
    order = np.argsort(curve.steps, kind="stable")
    return MetricCurve(curve.name, curve.steps[order], curve.times[order], curve.values[order])


def _read_index(path: Path) -> SidecarPartIndex:
    import pyarrow.parquet as pq

    return SidecarPartIndex(*json.loads(pq.read_schema(path).metadata[_PART_INDEX_KEY]))


def _merge_parts(parts: list[Path], indices: list[list[CurveRowPosition]], path: Path) -> None:
    pieces: dict[str, list[tuple[Path, int, int, int, int]]] = {}
    for part, index in zip(parts, indices, strict=True):
        for name, first, count, low, high in index:
            pieces.setdefault(name, []).append((part, first, count, low, high))
    with _open_curve_writer(path) as table:
        for name in sorted(pieces):
            mine = pieces[name]
            if all(before[-1] <= after[-2] for before, after in pairwise(mine)):
                for part, first, count, _, _ in mine:
                    for curve in _read_curve_rows(part, name, first, count):
                        table.add(curve)
            else:  # the steps of two parts overlap, for example because an evaluation was late: sort the whole curve
                table.add(
                    _sort_by_step(
                        _concatenate([c for part, first, n, _, _ in mine for c in _read_curve_rows(part, name, first, n)])
                    )
                )


def _concatenate(curves: list[MetricCurve]) -> MetricCurve:
    import numpy as np

    _, *columns = zip(*curves, strict=True)
    steps, times, values = (np.concatenate(column) for column in columns)
    return MetricCurve(curves[0].name, steps, times, values)


def _read_curve_rows(part: Path, name: str, first: int, count: int) -> Iterator[MetricCurve]:
    """Yield `count` rows of a sidecar part, starting at row `first`, one Parquet row group at a time. All these rows must
    belong to the metric `name`."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as file:
        start = 0
        for i in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(i).num_rows
            low, high = max(first - start, 0), min(first + count - start, rows)
            if low < high:
                group = file.read_row_group(i, columns=["step", "time_ms", "value"]).slice(low, high - low)
                yield MetricCurve(name, *(group[column].to_numpy() for column in ("step", "time_ms", "value")))
            start += rows


class _CurveWriter:
    """Collects curves of metrics, and writes them as Parquet row groups of `ROWS_PER_PARQUET_GROUP` rows."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._batches: list[Any] = []
        self._rows = 0

    def add(self, curve: MetricCurve) -> None:
        """Callers must add the curves in alphabetical order of their metrics' names."""
        import pyarrow as pa

        for start in range(0, len(curve.steps), ROWS_PER_PARQUET_GROUP):
            part = slice(start, start + ROWS_PER_PARQUET_GROUP)
            columns = [pa.array(c[part]) for c in (curve.steps, curve.times, curve.values)]
            self._batches.append(pa.record_batch([pa.repeat(curve.name, len(columns[0])), *columns], schema=_table_schema()))
            self._rows += len(columns[0])
            if self._rows >= ROWS_PER_PARQUET_GROUP:
                self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=2 * ROWS_PER_PARQUET_GROUP)
            self._batches, self._rows = [], 0


@contextmanager
def _open_curve_writer(path: Path, index: bytes | None = None) -> Iterator[_CurveWriter]:
    import pyarrow.parquet as pq

    schema = _table_schema() if index is None else _table_schema().with_metadata({_PART_INDEX_KEY: index})
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=["metric"],
        column_encoding={"step": "DELTA_BINARY_PACKED", "time_ms": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
    ) as writer:
        table = _CurveWriter(writer)
        yield table
        table.flush()


def _table_schema() -> Any:
    import pyarrow as pa

    columns = [("metric", pa.string()), ("step", pa.int64()), ("time_ms", pa.int64()), ("value", pa.float64())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def is_continued_run(run: Mapping[str, Any]) -> bool:
    """Return whether the run started before this spool folder was created. run: content of `run.json`."""
    return bool(run.get("continues", run.get("run_id")))


def sidecar_name(run: Mapping[str, Any]) -> str:
    """If the MLflow run is older than this spool, it may have several sidecars, so the name includes the spool's id."""
    name = contract.SIDECAR_PATH.rpartition("/")[2]
    if not is_continued_run(run):
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{run.get('identity', run['spool'])}.{suffix}"


def updated_sidecar_tag(tag: str | None, path: str, written: SidecarSummary) -> str:
    """Return the tag with an entry for this sidecar. If the text becomes too long, the oldest entries are dropped."""
    try:
        known = [part for part in json.loads(tag or "{}")["parts"] if part["path"] != path]
    except (ValueError, KeyError, TypeError):
        known = []
    known.append({"path": path, "rows": written.rows, "from_step": written.from_step, "to_step": written.to_step})
    while len(text := json.dumps({"parts": known})) > MAX_VALUE_CHARS:
        known.pop(0)
    return text
