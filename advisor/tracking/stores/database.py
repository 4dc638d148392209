"""Code for reading an experiment by SQL that is the same for all kinds of database. Runs are read in blocks, and their points
come from the cache, from sidecars or from the database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from advisor import contract
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError, UnansweredError
from advisor.tracking.points import cache, collect
from advisor.tracking.points.sidecar import SidecarSource, max_curve_points, read_sidecars, replace_by_sidecars
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.stores.filtering import filter_runs
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.lookup import ExperimentListing, choose_experiment

MIN_POINTS_TO_CACHE = 250_000
"""Minimum number of new points for which a cache file is written. Reading a smaller number of points from the database again is
faster than caching them."""
_RUNS_IN_FIRST_BLOCK = 16
"""Number of runs in the first block of runs to read. The number of points in the first block determines the number of runs in
the later blocks."""

POINT_DTYPE = np.dtype([("group", np.int64), ("step", np.int64), ("value", np.float64), ("time", np.int64)])
"""NumPy dtype of one metric point. `group` is run index * number of metrics + metric index; `time` is in milliseconds since
1970."""
PointBlock: TypeAlias = np.ndarray[Any, Any]
"""Points of several runs as an array of shape (n,) and dtype `POINT_DTYPE`."""
LastPoint: TypeAlias = tuple[int, str, int, int, float | None]
"""Last point of a curve: run index, metric, time in milliseconds since 1970, step, value."""
RunRow: TypeAlias = tuple[Any, ...]
"""Data of a run: id, name, status, start and end in milliseconds since 1970, artifact folder, user."""
NAN_PLACEHOLDER = float(np.nextafter(collect.LARGEST_FLOAT, 0.0))
"""Number that represents NaN in the query results of databases that cannot store NaN. Real metrics never have values as large
as `NAN_PLACEHOLDER`."""

_EXPERIMENTS_QUERY = "SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id"
_STUDY_FILES_QUERY = """
    SELECT e.experiment_id, e.name, t.key, t.value FROM experiments e LEFT JOIN experiment_tags t
    ON t.experiment_id = e.experiment_id AND t.key LIKE 'advisor.study_file%'
    WHERE e.lifecycle_stage = 'active' ORDER BY e.experiment_id, t.key
"""
_RUNS_QUERY = """
    SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs
    WHERE experiment_id = {experiment} AND lifecycle_stage = 'active' ORDER BY {order}
"""
_EXPERIMENT_TAGS_QUERY = (
    "SELECT t.key, substr(t.value, 1, {length}) FROM experiment_tags t WHERE t.experiment_id = {experiment}"
)


class RunDatabase(Protocol):
    """Queries whose SQL text differs between kinds of databases. Rows identify a run by its index in `ids`; an empty id matches
    no rows."""

    run_order: str
    """SQL expression that sorts runs by start time, then by the bytes of their ids."""

    def query(self, sql: str, *values: str) -> Sequence[Any]:
        """Run an SQL query of this module or of `filtering`, and return its rows. The SQL text has a `?` for each value."""

    def params(self, ids: list[str]) -> Iterable[Any]:
        """Return rows (run index, parameter name, value). Parameter values are truncated to `collect.MAX_TEXT_CHARS`
        characters."""

    def tags(self, ids: list[str]) -> Iterable[Any]:
        """Return rows (run index, tag name, value), with truncated values. A run may have millions of tags, so most of the tags
        that `collect.select_tags` would omit are not read."""

    def last_points(self, ids: list[str]) -> Iterable[LastPoint]:
        """Return the last point of each curve."""

    def revisions(self, ids: list[str]) -> Iterable[Any]:
        """Return rows (run index, revision). The revision of a run is a value that changes whenever a point is added to the
        run, at any step."""

    def blocks(self, metrics: Mapping[str, int], ids: list[str]) -> Iterator[tuple[int, PointBlock]]:
        """Yield (number of runs read so far, points of the runs in the last block). metrics: index of each metric to read, by
        name."""


class SqlTrackingStore(ABC):
    """Base class of the stores that read a database by SQL."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location

    @abstractmethod
    def open(self) -> AbstractContextManager[RunDatabase]:
        """Connect to the database for the duration of the `with` block. Database errors are raised as AdvisorError."""

    def experiments(self) -> list[ExperimentListing]:
        with self.open() as database:
            return _experiments(database)

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        with self.open() as database:
            rows = database.query(_STUDY_FILES_QUERY)
        experiments: dict[str, tuple[str, dict[str, str]]] = {}
        for id, name, key, value in rows:
            tags = experiments.setdefault(str(id), (name, {}))[1]
            if key is not None:
                tags[key] = value
        return list(experiments.values())

    def read(self, experiment: str, *, filter: str | None, on_progress: Callable[[int, int], None]) -> Experiment:
        with self.open() as database:
            chosen = choose_experiment(experiment, _experiments(database), self.location)
            rows = database.query(_RUNS_QUERY.format(experiment=int(chosen.id), order=database.run_order))
            if filter:
                rows = filter_runs(database.query, rows, filter)
            reading = _RunReader(database, rows, on_progress)
            tags = database.query(_EXPERIMENT_TAGS_QUERY.format(experiment=int(chosen.id), length=collect.MAX_TEXT_CHARS))
            points, warnings = reading.points(cache.cache_of_experiment(self.location, chosen.id))
            return Experiment(chosen.name, reading.runs, points, collect.select_tags(dict(map(tuple, tags))), warnings)


def _experiments(database: RunDatabase) -> list[ExperimentListing]:
    rows = database.query(_EXPERIMENTS_QUERY)
    return [ExperimentListing(id=str(id), name=name, deleted=stage == "deleted") for id, name, stage in rows]


class _RunReader:
    """Reads the points of an experiment's runs."""

    def __init__(self, database: RunDatabase, rows: Sequence[RunRow], on_progress: Callable[[int, int], None]) -> None:
        self._database, self._on_progress = database, on_progress
        self._ids = [row[0] for row in rows]
        self.runs = _build_runs(rows, database.params(self._ids), database.tags(self._ids))
        self._last_points = list(database.last_points(self._ids))
        self._sources = _sidecar_sources(self.runs, [row[5] for row in rows], self._last_points)
        self._max_curve_points = max_curve_points(sum(source is not None for source in self._sources))

    def points(self, kept: cache.PointCache) -> tuple[dict[str, Points], tuple[str, ...]]:
        """Return (points of the runs by metric, warnings)."""
        collector = collect.PointCollector()
        known = kept.load(self._cache_keys(), collector)
        names = {key for run, key, *_ in self._last_points if not known[run]}
        metrics = sorted(key for key in names if not key.startswith(collect.SYSTEM_METRIC_PREFIX))
        # A cached run keeps its index, but an empty id replaces its id, so that no query reads it.
        unknown = ["" if skip else id for id, skip in zip(self._ids, known, strict=True)]
        for done, block in self._database.blocks({name: i for i, name in enumerate(metrics)}, unknown):
            _add_block(block, metrics, collector)
            self._on_progress(done, len(unknown))
        wanted = [None if known[i] else source for i, source in enumerate(self._sources)]
        sidecars, warnings = read_sidecars(
            wanted, tracking_uri=None, limit=self._max_curve_points, reducing=False, on_progress=self._on_progress
        )
        replace_by_sidecars(sidecars, collector)
        unusable = [i for i, source in enumerate(wanted) if source is not None and sidecars[i] is None]
        return kept.save(collector, min_points=MIN_POINTS_TO_CACHE, except_runs=unusable), warnings

    def _cache_keys(self) -> list[str | None]:
        last: list[list[tuple[str, int, int, str]]] = [[] for _ in self.runs]
        for index, metric, time, step, value in self._last_points:
            last[index].append((metric, time, step, repr(value)))
        revisions = dict(map(tuple, self._database.revisions(self._ids)))
        keys: list[str | None] = []
        for i, (run, source) in enumerate(zip(self.runs, self._sources, strict=True)):
            if run.status in ("RUNNING", "SCHEDULED"):
                keys.append(None)
                continue
            sidecar = () if source is None else (source.sidecar_tag, source.artifact_root, self._max_curve_points)
            facts = run.id, run.status, run.started, run.ended, revisions.get(i), sorted(last[i])
            keys.append(cache.run_digest(*facts, False, *sidecar))  # False keeps existing caches valid
        return keys


def _build_runs(rows: Sequence[RunRow], params: Iterable[Any], tags: Iterable[Any]) -> tuple[Run, ...]:
    params_of, tags_of = collect.texts_by_run(params, len(rows)), collect.texts_by_run(tags, len(rows))
    return tuple(
        collect.make_run(id=id, name=name, status=status, start_ms=start, end_ms=end, params=params_of[i], tags=tags_of[i])
        for i, (id, name, status, start, end, *_) in enumerate(rows)
    )


def _sidecar_sources(
    runs: Sequence[Run], roots: Sequence[str | None], last_points: Iterable[LastPoint]
) -> list[SidecarSource | None]:
    """Return the location of each finished run's sidecars; None for a run that has no sidecar, or whose points are all in the
    store.

    roots: artifact folder of each run.
    """
    stored: list[dict[str, int]] = [{} for _ in runs]
    for run, key, time, *_ in last_points:
        stored[run][key] = time
    return [
        SidecarSource(run.tags[contract.TAG_CURVE_FILES], root or "", mine)
        if contract.TAG_CURVE_FILES in run.tags
        and run.status not in ("RUNNING", "SCHEDULED")
        and any(key + contract.MAX_SUFFIX in mine for key in mine)
        else None
        for run, root, mine in zip(runs, roots, stored, strict=True)
    ]


def read_blocks(
    read: Callable[[list[str]], PointBlock], ids: list[str], metrics: int, points_at_once: int
) -> Iterator[tuple[int, PointBlock]]:
    """Yield the blocks of points that `RunDatabase.blocks` describes, with one query per block.

    read: function that receives run ids and returns the points of these runs, with run indices that start at 0. points_at_once:
    approximate maximum number of points per block.
    """
    done, size = 0, _RUNS_IN_FIRST_BLOCK
    while done < len(ids):
        block = read(ids[done : done + size])
        block["group"] += done * metrics
        done = min(done + size, len(ids))
        yield done, block
        size = max(1, min(4 * size, size * points_at_once // max(len(block), 1)))


def _add_block(block: PointBlock, metrics: Sequence[str], collector: collect.PointCollector) -> None:
    if not len(block):
        return
    runs, metric = np.divmod(block["group"], len(metrics))
    order = np.argsort(metric.astype(np.int16 if len(metrics) < 2**15 else np.int64), kind="stable")
    runs, values, steps, times = runs[order], block["value"][order], block["step"][order], block["time"][order]
    ends = np.searchsorted(metric[order], np.arange(len(metrics) + 1))
    for i, name in enumerate(metrics):
        part = slice(ends[i], ends[i + 1])
        if ends[i] < ends[i + 1]:
            collector.add(name, runs[part], steps[part], values[part], times[part])


# --- errors ---------------------------------------------------------------------------------------------------------------------


def check_schema_version(version: str | None, location_text: object) -> None:
    """Raise AdvisorError if the database schema is newer than the installed MLflow. version: None if the store does not record
    it."""
    known = _known_schema_versions()
    if known and version is not None and version not in known:
        raise AdvisorError(
            f"{location_text} was written by a newer MLflow than the one installed here; run: pip install --upgrade mlflow-skinny"
        )


def _known_schema_versions() -> set[str]:
    """Return the database schema versions that the installed MLflow knows. The versions are taken from the file names of
    MLflow's migrations, because importing MLflow is slow."""
    spec = find_spec("mlflow")
    folders = spec.submodule_search_locations if spec is not None else None
    return {
        file.name.split("_", 1)[0]
        for folder in folders or ()
        for file in Path(folder, "store", "db_migrations", "versions").glob("[0-9a-f]*_*.py")
    }


def unreadable_database_error(
    reason: Literal["no store", "old schema", "no privilege", "out of reach"], location_text: str
) -> AdvisorError:
    """Return the AdvisorError to raise if a server's database cannot be read."""
    messages = {
        "no store": f"{location_text} holds no MLflow store; pass the database that your tracking server uses",
        "old schema": f"{location_text} has the schema of an older MLflow; back it up and run: mlflow db upgrade",
        "no privilege": f"{location_text} denies reading; the user needs SELECT on the tables of MLflow",
        "out of reach": f"cannot reach {location_text}; is the database running, and are user and password right?",
    }
    return (UnansweredError if reason == "out of reach" else AdvisorError)(messages[reason])


def shorten_message(message: object) -> str:
    """Return the error message of a database driver on one line of at most 300 characters, without credentials."""
    return " ".join(redact(str(message)).split())[:300]
