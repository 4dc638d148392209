"""Reads curves at full resolution from sidecars: Parquet files that our logger saves as artifacts, while the store holds means,
minima and maxima of windows. Files may be truncated or malicious, so they are validated. Without a usable sidecar, a run's
curves are read from the store."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from advisor import contract
from advisor.model.space import BoolArray, FloatArray
from advisor.tracking.points.artifacts import UnusableFileError, open_artifact
from advisor.tracking.points.collect import IntArray, PointCollector

MAX_POINTS = 50_000
"""Maximum points of a curve at full resolution; longer curves are reduced to the mean, minimum and maximum of windows."""
MAX_STUDY_POINTS = 40_000_000
"""Maximum points of all full-resolution curves of a study, with ten curves per run."""
MAX_SIDECAR_ROWS = 200_000_000
_MAX_BYTES_PER_ROW = 256
_MAX_THREADS = 8
_SIDECAR_PATH_PATTERN = re.compile(re.escape(contract.SIDECAR_PATH).replace(r"\.parquet", r"(-[0-9a-f]{1,32})?\.parquet"))
_COLUMN_TYPES = {"metric": "string", "step": "int64", "time_ms": "int64", "value": "double"}
Columns: TypeAlias = tuple[IntArray, FloatArray, IntArray]
"""Points as three arrays of shape (n,): steps, values, and times in milliseconds since 1970."""
PointMask: TypeAlias = Callable[[IntArray, IntArray, IntArray], BoolArray]
"""Function that returns a mask of points from their run indices, steps and times in milliseconds."""


@dataclass(frozen=True, slots=True)
class SidecarSource:
    """Location of one run's sidecar files, and the times of the run's last points in the store."""

    sidecar_tag: str
    """Value of the run's tag `contract.TAG_CURVE_FILES`."""
    artifact_root: str
    last_stored_ms: Mapping[str, int]
    """Time in milliseconds since 1970 of each metric's last point in the store."""


@dataclass(frozen=True, slots=True)
class SidecarPart:
    """One sidecar file, which covers a part of the run's training steps."""

    from_step: int
    to_step: int
    first_time_ms: int
    last_time_ms: int
    curves: Mapping[str, Columns]
    """Curves by metric; long ones are reduced to windows if `read_sidecars` was called with `reducing`."""
    replaced_metrics: frozenset[str]
    """Metrics whose points in the store `curves` replaces."""


@dataclass(frozen=True, slots=True)
class SidecarCurves:
    parts: tuple[SidecarPart, ...]

    def covers_store(self, metric: str, last_ms: int) -> bool:
        """Return whether the sidecars hold all points of `metric` in the store. last_ms: time of the last point in the store."""
        covered_step = -1
        for part in self.parts:
            if part.from_step > covered_step + 1:
                return False
            covered_step = max(covered_step, part.to_step)
        last_times_ms = {part.last_time_ms for part in self.parts if _is_in_sidecar(metric, part.replaced_metrics)}
        return bool(last_times_ms) and last_ms <= max(last_times_ms)


def max_curve_points(runs: int) -> int:
    """Return the maximum points of a curve for this number of runs with sidecars: `MAX_POINTS`, halved until all curves fit
    into `MAX_STUDY_POINTS`, so that a few additional runs rarely change it."""
    limit = MAX_POINTS
    while limit * 10 * runs > MAX_STUDY_POINTS and limit > 2 * contract.DENSELY_LOGGED_STEPS:
        limit //= 2
    return max(limit, 2 * contract.DENSELY_LOGGED_STEPS)


def read_sidecars(
    sources: Sequence[SidecarSource | None],
    *,
    tracking_uri: str | None,
    limit: int,
    reducing: bool,
    on_progress: Callable[[int, int], None],
) -> tuple[list[SidecarCurves | None], tuple[str, ...]]:
    """Return each run's curves (None without a usable sidecar), and warnings. If tracking_uri is None, only local folders are
    searched. limit: maximum points of a curve; longer ones are read from the store or, with `reducing`, which slow stores need,
    reduced to windows."""
    sources_by_run = [(i, source) for i, source in enumerate(sources) if source is not None]
    sidecars: list[SidecarCurves | None] = [None] * len(sources)
    reasons: Counter[str] = Counter()

    def read(source: SidecarSource) -> SidecarCurves | UnusableFileError:
        try:
            return _read_run(source, tracking_uri, limit, reducing)
        except UnusableFileError as error:
            return error

    pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="advisor-sidecar")
    try:
        results = pool.map(read, (source for _, source in sources_by_run))
        for done, ((i, _), result) in enumerate(zip(sources_by_run, results, strict=True), start=1):
            if isinstance(result, SidecarCurves):
                sidecars[i] = result
            else:
                reasons[str(result)] += 1
            on_progress(done, len(sources_by_run))
    finally:
        pool.shutdown(cancel_futures=True)
    return sidecars, tuple(_sidecar_warning(reason, runs) for reason, runs in reasons.most_common())


def _sidecar_warning(reason: str, runs: int) -> str:
    curves = "a run's curves" if runs == 1 else f"the curves of {runs:,} runs"
    return f"The file with {curves} at full resolution was not used, because it {reason}; the store's points were read instead."


def replace_by_sidecars(sidecars: Sequence[SidecarCurves | None], collector: PointCollector) -> None:
    for metric in collector.metrics():
        if (which := _superseded_points(sidecars, metric)) is not None:
            collector.drop(metric, which)
    for i, sidecar in enumerate(sidecars):
        for part in sidecar.parts if sidecar is not None else ():
            for metric, (steps, values, times) in part.curves.items():
                collector.add(metric, np.full(len(steps), i, dtype=np.int64), steps, values, times)


def _superseded_points(sidecars: Sequence[SidecarCurves | None], metric: str) -> PointMask | None:
    """Return a mask of the points within the steps and times of a sidecar; others come from other programs."""
    all_parts = ((i, part) for i, sidecar in enumerate(sidecars) if sidecar is not None for part in sidecar.parts)
    parts = [(i, part) for i, part in all_parts if _is_in_sidecar(metric, part.replaced_metrics)]
    if not parts:
        return None

    def which(runs: IntArray, steps: IntArray, times: IntArray) -> BoolArray:
        is_superseded = np.zeros(len(runs), dtype=np.bool_)
        is_sorted = bool((runs[1:] >= runs[:-1]).all())
        for run, part in parts:
            of_run = slice(*np.searchsorted(runs, [run, run + 1]).tolist()) if is_sorted else runs == run
            is_in_time = (times[of_run] >= part.first_time_ms) & (times[of_run] <= part.last_time_ms)
            is_superseded[of_run] |= is_in_time & (steps[of_run] >= part.from_step)
        return is_superseded

    return which


def _is_in_sidecar(metric: str, names: Collection[str]) -> bool:
    """Return whether `names` contains the metric or the metric whose window minimum or maximum it is."""
    return any(metric.endswith(s) and metric.removesuffix(s) in names for s in ("", contract.MIN_SUFFIX, contract.MAX_SUFFIX))


def _read_run(source: SidecarSource, tracking_uri: str | None, limit: int, reducing: bool) -> SidecarCurves:
    parts = []
    for path, rows, from_step, to_step in _parse_tag(source.sidecar_tag):
        if not reducing and rows > limit * len(source.last_stored_ms):
            continue  # nearly all curves in such a file exceed the maximum number of points
        with open_artifact(source.artifact_root, path, tracking_uri) as file:
            try:
                parts.append(_read_part(file, source, (rows, from_step, to_step), limit, reducing))
            except UnusableFileError:
                raise
            except MemoryError:
                raise UnusableFileError("does not fit into memory") from None
            except Exception as error:  # reading a damaged file may raise any exception
                raise UnusableFileError("is not a complete Parquet file") from error
    return SidecarCurves(tuple(sorted(parts, key=lambda part: (part.first_time_ms, part.from_step))))


def _parse_tag(tag: str) -> list[tuple[str, int, int, int]]:
    """Return (path, rows, first step, last step) of each sidecar that the tag lists."""
    try:
        parts = [(p["path"], p["rows"], p["from_step"], p["to_step"]) for p in json.loads(tag)["parts"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnusableFileError("is named by a tag that our logger did not write") from None
    for path, *numbers in parts:
        if not all(type(number) is int for number in numbers) or not isinstance(path, str):
            raise UnusableFileError("is named by a tag that our logger did not write")
        if not 0 < numbers[0] <= MAX_SIDECAR_ROWS:
            raise UnusableFileError(f"declares {numbers[0]:,} rows; allowed are 1 to {MAX_SIDECAR_ROWS:,}")
        if not _SIDECAR_PATH_PATTERN.fullmatch(path):
            raise UnusableFileError("is not at the path that our logger uses")
    return parts


def _read_part(file: Path, source: SidecarSource, declared: tuple[int, int, int], limit: int, reducing: bool) -> SidecarPart:
    """Read one sidecar file. declared: rows, first step and last step, as stated in the run's tag."""
    rows, from_step, to_step = declared
    curves: dict[str, Columns] = {}
    names = set()
    first_ms, last_ms = 2**63 - 1, -(2**63)
    for name, columns in _read_curves(file, rows):
        steps, _, times = columns
        first_ms, last_ms = min(first_ms, int(times.min())), max(last_ms, int(times.max()))
        if int(steps.max()) > to_step:
            raise UnusableFileError("does not have the rows and steps that its run's tag states")
        if name not in source.last_stored_ms:
            continue
        if name in names:
            raise UnusableFileError("does not have the row order that our logger writes")
        if len(steps) > limit and name + contract.MAX_SUFFIX in source.last_stored_ms:
            if reducing:
                names.add(name)
                curves |= _summarize_in_windows(name, *columns)
        else:
            names.add(name)
            curves[name] = columns
    return SidecarPart(from_step, to_step, first_ms, last_ms, curves, frozenset(names))


def _read_curves(file: Path, rows: int) -> Iterator[tuple[str, Columns]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, read_dictionary=["metric"]) as table:
        _require_columns_and_size(table, rows)
        name, pieces = None, list[Columns]()
        for batch in table.iter_batches(batch_size=1 << 16, use_threads=False):
            if any(column.null_count for column in batch.columns):
                raise UnusableFileError("lacks values")
            metrics = batch.column("metric")
            codes = metrics.indices.to_numpy()
            steps, times, values = (batch.column(c).to_numpy() for c in ("step", "time_ms", "value"))
            curve_bounds = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
            for start, stop in pairwise(curve_bounds):
                if start == stop:
                    continue
                metric = metrics.dictionary[int(codes[start])].as_py()
                if metric != name and name is not None:
                    yield name, _join_point_columns(pieces)
                    pieces = []
                name = metric
                # Copy the values, because a slice would keep its whole record batch in memory.
                pieces.append((steps[start:stop].copy(), values[start:stop].copy(), times[start:stop].copy()))
        if name is not None:
            yield name, _join_point_columns(pieces)


def _require_columns_and_size(table: Any, rows: int) -> None:
    schema = table.metadata.schema.to_arrow_schema()
    if {field.name: str(field.type) for field in schema} != _COLUMN_TYPES:
        raise UnusableFileError("does not have our logger's columns")
    if table.metadata.num_rows != rows:
        raise UnusableFileError("does not have the rows and steps that its run's tag states")
    groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > _MAX_BYTES_PER_ROW * rows + 2**20:
        raise UnusableFileError("is larger than its number of rows allows")


def _join_point_columns(pieces: list[Columns]) -> Columns:
    steps, values, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if (steps[1:] < steps[:-1]).any():
        raise UnusableFileError("does not have the row order that our logger writes")
    return steps, values, times


def _summarize_in_windows(name: str, steps: IntArray, values: FloatArray, times: IntArray) -> dict[str, Columns]:
    """Return NAME, NAME.min and NAME.max of an ascending curve, bit-identical to those that our logger stores."""
    bounds = _window_bounds(steps)
    last_indices = bounds[1:] - 1
    means, lows, highs = np.empty(len(last_indices)), np.empty(len(last_indices)), np.empty(len(last_indices))
    for i, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        window_values = values[start:stop].tolist()
        means[i] = sum(window_values) / len(window_values)
        numbers_in_window = [v for v in window_values if not math.isnan(v)]
        lows[i], highs[i] = (min(numbers_in_window), max(numbers_in_window)) if numbers_in_window else (math.nan, math.nan)
    has_many_steps = np.array([contract.window_width(step) > 1 for step in steps[last_indices].tolist()], dtype=np.bool_)
    at, when = steps[last_indices], times[last_indices]
    return {
        name: (at, means, when),
        name + contract.MIN_SUFFIX: (at[has_many_steps], lows[has_many_steps], when[has_many_steps]),
        name + contract.MAX_SUFFIX: (at[has_many_steps], highs[has_many_steps], when[has_many_steps]),
    }


def _window_bounds(steps: IntArray) -> IntArray:
    width = np.ones(len(steps), dtype=np.int64)
    width_change_step = contract.DENSELY_LOGGED_STEPS
    while len(steps) and width_change_step <= steps[-1]:
        width[steps >= width_change_step] *= 2
        width_change_step *= 2
    number = steps // width
    starts = np.flatnonzero((width[1:] != width[:-1]) | (number[1:] != number[:-1]) | (width[1:] == 1)) + 1
    return np.concatenate(([0], starts, [len(steps)]) if len(steps) else ([0],)).astype(np.int64)
