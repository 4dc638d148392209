"""The sidecar: a Parquet table of every point of a run as it was recorded, written by the shipper and stored beside the run.

    segment, acknowledged ──► part: sorted by metric and step, compressed ──┐
    segment, acknowledged ──► part ─────────────────────────────────────────┴─ end of the run ──► contract.SIDECAR_PATH

Parts are made while the training runs, one segment at a time, so that the end of a long run is a merge of sorted pieces: no more of
it is in memory than a segment and a row group. All of it can be done again from what lies on the disk after a crash at any moment.
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
from advisor_logging.spool import (
    EVENT,
    STEPS,
    Frame,
    Position,
    note_dropped,
    part_path,
    parts,
    read_dropped,
    read_segment,
    segment_path,
    segments,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROW_GROUP = 1 << 16
"""Rows that are written at once, and read at once."""
_INDEX = b"advisor.curves"
"""Metadata of a part: an `Index` as JSON."""

Place = tuple[str, int, int, int, int]
"""Metric, first row, number of rows, first step, last step."""


class Index(NamedTuple):
    """What a part holds."""

    curves: list[Place]
    begins: int
    """The first step of the training in it; the first step at all where it has only evaluations."""


class Curve(NamedTuple):
    """Points of one metric, ascending in step; arrays of one shape (n,)."""

    name: str
    steps: NDArray[np.int64]
    times: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Written:
    """What a sidecar holds."""

    rows: int
    from_step: int
    """The first step from which on nothing of the run is missing; 0 if nothing is."""
    to_step: int


def archive(folder: Path, before: int) -> str | None:
    """Turn the segments below number `before`, which the store has, into parts. Gives what went wrong, if anything did.

    Where that fails, because the disk is full or pyarrow is missing, they are dropped all the same: they are delivered, and the
    room is needed for what is not.
    """
    problem = None
    for number in segments(folder):
        if number >= before:
            break
        try:
            _make_part(folder, number)
            segment_path(folder, number).unlink(missing_ok=True)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            last = max((_last_step(f) for f in read_segment(folder, Position(number)) if f.kind != EVENT), default=-1)
            segment_path(folder, number).unlink(missing_ok=True)
            note_dropped(folder, last)
    return problem


def write(folder: Path, path: Path, *, continued: bool = False) -> Written | None:
    """Write the table of all that the spool in `folder` holds, whose run is over, to `path`; None if there is no point.

    `continued`: whether the run had begun before this spool did. Raises OSError or pyarrow's errors.
    """
    for number in segments(folder):
        _make_part(folder, number)
    made = [part.path for part in parts(folder)]
    if not made:
        return None
    indices = [_read_index(part) for part in made]
    if len(made) == 1:
        shutil.copyfile(made[0], path)
    else:
        _merge(made, [index.curves for index in indices], path)
    places = [place for index in indices for place in index.curves]
    from_step = read_dropped(folder) + 1
    if continued and not from_step:
        from_step = min(index.begins for index in indices)
    return Written(sum(count for _, _, count, _, _ in places), from_step, max(last for *_, last in places))


def _last_step(frame: Frame) -> int:
    return max((int(step) for step in frame.columns()[0]), default=-1)


# --- parts ----------------------------------------------------------------------------------------------------------------------


def _make_part(folder: Path, number: int) -> None:
    """Write the part that a segment becomes, in place of one of an earlier attempt."""
    frames = [frame for frame in read_segment(folder, Position(number)) if frame.kind != EVENT]
    if not frames:
        return
    curves, first = _gather(frames), 0
    places: list[Place] = []
    for curve in curves:
        places.append((curve.name, first, len(curve.steps), int(curve.steps[0]), int(curve.steps[-1])))
        first += len(curve.steps)
    trained = [int(frame.columns()[0][0]) for frame in frames if frame.kind == STEPS][:1]
    index = Index(places, min(trained or [low for _, _, _, low, _ in places]))
    path = part_path(folder, number, max(last for *_, last in places))
    temporary = path.with_suffix(".new")
    try:
        with _table(temporary, json.dumps(index).encode()) as table:
            for curve in curves:
                table.add(curve)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    for part in parts(folder):
        if part.segment == number and part.path != path:
            part.path.unlink()


def _gather(frames: Iterable[Frame]) -> list[Curve]:
    """All rows of some frames, by metric; points of one step stay in the order in which they were recorded."""
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
        curves.append(_sorted(Curve(name, steps_.astype(np.int64), times_.astype(np.int64), values_)))
    return curves


def _sorted(curve: Curve) -> Curve:
    import numpy as np

    if (curve.steps[1:] >= curve.steps[:-1]).all():
        return curve
    order = np.argsort(curve.steps, kind="stable")
    return Curve(curve.name, curve.steps[order], curve.times[order], curve.values[order])


def _read_index(path: Path) -> Index:
    import pyarrow.parquet as pq

    return Index(*json.loads(pq.read_schema(path).metadata[_INDEX]))


# --- the table ------------------------------------------------------------------------------------------------------------------


def _merge(made: list[Path], indices: list[list[Place]], path: Path) -> None:
    pieces: dict[str, list[tuple[Path, int, int, int, int]]] = {}
    for part, index in zip(made, indices, strict=True):
        for name, first, count, low, high in index:
            pieces.setdefault(name, []).append((part, first, count, low, high))
    with _table(path) as table:
        for name in sorted(pieces):
            mine = pieces[name]
            if all(before[-1] <= after[-2] for before, after in pairwise(mine)):
                for part, first, count, _, _ in mine:
                    for curve in _read(part, name, first, count):
                        table.add(curve)
            else:  # its steps went back, as those of an evaluation after the fact do: the whole curve is put in order
                table.add(_sorted(_joined([c for part, first, n, _, _ in mine for c in _read(part, name, first, n)])))


def _joined(curves: list[Curve]) -> Curve:
    import numpy as np

    _, *columns = zip(*curves, strict=True)
    steps, times, values = (np.concatenate(column) for column in columns)
    return Curve(curves[0].name, steps, times, values)


def _read(part: Path, name: str, first: int, count: int) -> Iterator[Curve]:
    """The rows `first` to `first + count` of a part, which are the curve `name`, a row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as file:
        start = 0
        for i in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(i).num_rows
            low, high = max(first - start, 0), min(first + count - start, rows)
            if low < high:
                group = file.read_row_group(i, columns=["step", "time_ms", "value"]).slice(low, high - low)
                yield Curve(name, *(group[column].to_numpy() for column in ("step", "time_ms", "value")))
            start += rows


class _Table:
    """Gathers curves into row groups of `ROW_GROUP` rows."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._batches: list[Any] = []
        self._rows = 0

    def add(self, curve: Curve) -> None:
        """Append points; metrics come in the order of their names."""
        import pyarrow as pa

        for start in range(0, len(curve.steps), ROW_GROUP):
            part = slice(start, start + ROW_GROUP)
            columns = [pa.array(c[part]) for c in (curve.steps, curve.times, curve.values)]
            self._batches.append(pa.record_batch([pa.repeat(curve.name, len(columns[0])), *columns], schema=_schema()))
            self._rows += len(columns[0])
            if self._rows >= ROW_GROUP:
                self.flush()

    def flush(self) -> None:
        """Write what waits."""
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=2 * ROW_GROUP)
            self._batches, self._rows = [], 0


@contextmanager
def _table(path: Path, index: bytes | None = None) -> Iterator[_Table]:
    import pyarrow.parquet as pq

    schema = _schema() if index is None else _schema().with_metadata({_INDEX: index})
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=["metric"],
        column_encoding={
            "step": "DELTA_BINARY_PACKED",
            "time_ms": "DELTA_BINARY_PACKED",
            "value": "BYTE_STREAM_SPLIT",
        },
    ) as writer:
        table = _Table(writer)
        yield table
        table.flush()


def _schema() -> Any:
    import pyarrow as pa

    columns = [("metric", pa.string()), ("step", pa.int64()), ("time_ms", pa.int64()), ("value", pa.float64())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


# --- the tag --------------------------------------------------------------------------------------------------------------------

_MAX_TAG = 5000


def continues(run: Mapping[str, Any]) -> bool:
    """Whether the run of a spool had begun before it; `run` is its `run.json`."""
    return bool(run.get("continues", run.get("run_id")))


def file_name(run: Mapping[str, Any]) -> str:
    """The artifact's name: a run that is continued may have one already."""
    name = contract.SIDECAR_PATH.rpartition("/")[2]
    if not continues(run):
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{run.get('identity', run['spool'])}.{suffix}"


def tag_with(tag: str | None, path: str, written: Written) -> str:
    """The run's tag with this sidecar among those it names; the oldest are left out where the tag gets too long."""
    try:
        known = [part for part in json.loads(tag or "{}")["parts"] if part["path"] != path]
    except (ValueError, KeyError, TypeError):
        known = []
    known.append({"path": path, "rows": written.rows, "from_step": written.from_step, "to_step": written.to_step})
    while len(text := json.dumps({"parts": known})) > _MAX_TAG:
        known.pop(0)
    return text
