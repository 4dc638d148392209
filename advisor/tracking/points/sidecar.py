"""Curves at full resolution: the artifact that our logger leaves beside a run, preferred to the windows that the store holds.

It is somebody's file, and may be missing, torn, or made to do harm: nothing of it is believed before it was checked, nothing is
executed, and a run whose sidecar will not do is read from the store, as it would be without.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from advisor import contract
from advisor.tracking.points.artifacts import Unusable, opened_artifact
from advisor.tracking.points.collect import Collector
from advisor.tracking.points.windows import Columns, reduce

MAX_POINTS = 50_000
"""Longer curves are analysed as the windows that the store has of them, so that a study fits into memory."""
MAX_POINTS_IN_ALL = 40_000_000
"""With many runs, already shorter curves are; reckoned with ten curves a run."""
MAX_ROWS = 200_000_000
"""Rows of a file that are looked through."""
_BYTES_A_ROW = 256
_THREADS = 8
_PATH = re.compile(re.escape(contract.SIDECAR_PATH).replace(r"\.parquet", r"(-[0-9a-f]{1,32})?\.parquet"))
_COLUMNS = {"metric": "string", "step": "int64", "time_ms": "int64", "value": "double"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a run's sidecar is looked for."""

    tag: str
    """Value of `contract.TAG_SIDECAR`."""
    root: str
    """Where the run's artifacts lie."""
    stored: Mapping[str, int]
    """The run's metrics in the store, and the time in milliseconds of the last point of each."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sidecar of a run, of one stretch of its training."""

    from_step: int
    to_step: int
    first_ms: int
    last_ms: int
    curves: Mapping[str, Columns]
    """What to use in place of the store's points: reduced to windows where that is called for."""
    names: frozenset[str]
    """The metrics whose points in the store are not needed, for those of `curves` stand for them."""


@dataclass(frozen=True, slots=True)
class Full:
    """What the sidecars of a run have."""

    parts: tuple[Part, ...]

    def covers(self, metric: str, last_ms: int) -> bool:
        """Whether the store has no point of `metric` that is not in here, too; `last_ms` is the time of its last one there."""
        reached = -1
        for part in self.parts:
            if part.from_step > reached + 1:
                return False
            reached = max(reached, part.to_step)
        mine = {part.last_ms for part in self.parts if _base(metric, part.names) is not None}
        return bool(mine) and last_ms <= max(mine)


def longest(runs: int) -> int:
    """Points of the longest curves that are used whole where so many runs have sidecars.

    Halved as often as needed: a few runs more seldom change it, and with it what was read of the others.
    """
    limit = MAX_POINTS
    while limit * 10 * runs > MAX_POINTS_IN_ALL and limit > 2 * contract.DENSE_STEPS:
        limit //= 2
    return max(limit, 2 * contract.DENSE_STEPS)


def read_sidecars(
    sources: Sequence[Source | None],
    *,
    tracking_uri: str | None,
    limit: int,
    reducing: bool,
    on_progress: Callable[[int, int], None],
) -> tuple[list[Full | None], tuple[str, ...]]:
    """What the sidecars of runs have, None for a run without one or whose one cannot be used; and warnings of the latter.

    tracking_uri: the server that has the runs; None looks into local folders only. limit: `longest` of all runs with sidecars.
    reducing: whether longer curves are reduced here, or left to the store, which is better where that is quick.
    """
    wanted = [i for i, source in enumerate(sources) if source is not None]
    found: list[Full | None] = [None] * len(sources)
    reasons: Counter[str] = Counter()

    def read(i: int) -> Full | Unusable:
        source = sources[i]
        assert source is not None
        try:
            return _read_run(source, tracking_uri, limit, reducing)
        except Unusable as unusable:
            return unusable

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="advisor-sidecar")
    try:
        for done, (i, full) in enumerate(zip(wanted, pool.map(read, wanted), strict=True), start=1):
            if isinstance(full, Full):
                found[i] = full
            else:
                reasons[str(full)] += 1
            on_progress(done, len(wanted))
    finally:
        pool.shutdown(cancel_futures=True)
    return found, tuple(_warning(why, runs) for why, runs in reasons.most_common())


def _warning(why: str, runs: int) -> str:
    whose = "a run's curves" if runs == 1 else f"the curves of {runs:,} runs"
    return f"The file with {whose} at full resolution was not used, because it {why}; the store's points were read instead."


def prefer(found: Sequence[Full | None], collector: Collector) -> None:
    """Put the curves of sidecars in the place of what the store has of the same stretches."""
    for metric in collector.metrics():
        if (which := _superseded(found, metric)) is not None:
            collector.drop(metric, which)
    for i, full in enumerate(found):
        for part in full.parts if full is not None else ():
            for metric, (steps, values, times) in part.curves.items():
                collector.add(metric, np.full(len(steps), i, dtype=np.int64), steps, values, times)


def _superseded(found: Sequence[Full | None], metric: str) -> Callable[..., np.ndarray[Any, np.dtype[np.bool_]]] | None:
    """Which of the store's points of `metric`, given as (runs, steps, times), a sidecar has, too; None where there is no such run.

    Those are the points of its stretch of steps and of its time: what others wrote, or an earlier part of the training, stays.
    """
    parts = [
        (i, part.from_step, part.first_ms, part.last_ms)
        for i, full in enumerate(found)
        if full is not None
        for part in full.parts
        if _base(metric, part.names) is not None
    ]
    if not parts:
        return None

    def which(
        runs: np.ndarray[Any, Any], steps: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        gone = np.zeros(len(runs), dtype=np.bool_)
        ordered = bool((runs[1:] >= runs[:-1]).all())
        for run, from_step, first, last in parts:
            here = slice(*np.searchsorted(runs, [run, run + 1]).tolist()) if ordered else runs == run
            gone[here] |= (steps[here] >= from_step) & (times[here] >= first) & (times[here] <= last)
        return gone

    return which


def _base(metric: str, names: Collection[str]) -> str | None:
    """The metric of `names` that `metric` is, or is a window's extreme of."""
    if metric in names:
        return metric
    for suffix in (contract.MIN_SUFFIX, contract.MAX_SUFFIX):
        if metric.endswith(suffix) and metric.removesuffix(suffix) in names:
            return metric.removesuffix(suffix)
    return None


# --- one run --------------------------------------------------------------------------------------------------------------------


def _read_run(source: Source, tracking_uri: str | None, limit: int, reducing: bool) -> Full:
    parts = []
    for path, rows, from_step, to_step in _named(source.tag):
        if not reducing and rows > limit * len(source.stored):
            continue  # nearly all of it would be left to the store
        with opened_artifact(source.root, path, tracking_uri) as file:
            try:
                parts.append(_read_part(file, source, (rows, from_step, to_step), limit, reducing))
            except Unusable:
                raise
            except MemoryError:
                raise Unusable("does not fit into memory") from None
            except Exception as error:  # whatever a broken file makes of its reader
                raise Unusable("is no whole Parquet file") from error
    return Full(tuple(sorted(parts, key=lambda part: (part.first_ms, part.from_step))))


def _named(tag: str) -> list[tuple[str, int, int, int]]:
    """Path, rows, first and last step of each sidecar that the tag names. Raises Unusable."""
    try:
        parts = [(p["path"], p["rows"], p["from_step"], p["to_step"]) for p in json.loads(tag)["parts"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unusable("is named by a tag that is none of our logger's") from None
    for path, *numbers in parts:
        if not all(type(number) is int for number in numbers) or not isinstance(path, str):
            raise Unusable("is named by a tag that is none of our logger's")
        if not 0 < numbers[0] <= MAX_ROWS:
            raise Unusable(f"is said to have {numbers[0]:,} rows")
        if not _PATH.fullmatch(path):
            raise Unusable("is not where our logger puts it")
    return parts


def _read_part(file: Path, source: Source, told: tuple[int, int, int], limit: int, reducing: bool) -> Part:
    rows, from_step, to_step = told
    curves: dict[str, Columns] = {}
    names = set()
    first_ms, last_ms = 2**63 - 1, -(2**63)
    for name, columns in _curves(file, rows):
        steps, _, times = columns
        first_ms, last_ms = min(first_ms, int(times.min())), max(last_ms, int(times.max()))
        if int(steps.max()) > to_step:
            raise Unusable("does not hold what its run says")
        if name not in source.stored:
            continue
        if name in names:
            raise Unusable("is not in the order in which our logger writes")
        if len(steps) > limit and name + contract.MAX_SUFFIX in source.stored:
            if reducing:
                names.add(name)
                curves |= reduce(name, *columns)
        else:
            names.add(name)
            curves[name] = columns
    return Part(from_step, to_step, first_ms, last_ms, curves, frozenset(names))


def _curves(file: Path, rows: int) -> Iterator[tuple[str, Columns]]:
    """The curves in a file, one after the other; no more than one of them is in memory."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, read_dictionary=["metric"]) as table:
        _check(table, rows)
        name, pieces = None, list[Columns]()
        for batch in table.iter_batches(batch_size=1 << 16, use_threads=False):
            if any(column.null_count for column in batch.columns):
                raise Unusable("has values missing")
            metrics = batch.column("metric")
            codes = metrics.indices.to_numpy()
            steps, times, values = (batch.column(c).to_numpy() for c in ("step", "time_ms", "value"))
            cuts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
            for start, stop in pairwise(cuts):
                if start == stop:
                    continue
                this = metrics.dictionary[int(codes[start])].as_py()
                if this != name and name is not None:
                    yield name, _joined(pieces)
                    pieces = []
                name = this
                # Copies: a slice would keep its whole batch in memory.
                pieces.append((steps[start:stop].copy(), values[start:stop].copy(), times[start:stop].copy()))
        if name is not None:
            yield name, _joined(pieces)


def _check(table: Any, rows: int) -> None:
    """Raises Unusable unless the file has the columns and the size that our logger gave it."""
    schema = table.metadata.schema.to_arrow_schema()
    kinds = {field.name: str(field.type) for field in schema}
    if kinds != _COLUMNS:
        raise Unusable("does not have our logger's columns")
    if table.metadata.num_rows != rows:
        raise Unusable("does not hold what its run says")
    groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > _BYTES_A_ROW * rows + 2**20:
        raise Unusable("is larger than its rows can be")


def _joined(pieces: list[Columns]) -> Columns:
    steps, values, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if (steps[1:] < steps[:-1]).any():
        raise Unusable("is not in the order in which our logger writes")
    return steps, values, times
