"""Reads an experiment from any kind of database by a few SQL queries that read many runs each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.points import collect
from advisor.tracking.points.autopsies import add_autopsies
from advisor.tracking.points.cache import cache_of_experiment
from advisor.tracking.points.load import LastPoint, StoredRun, read_points
from advisor.tracking.points.sidecar import SidecarCurves
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.filtering import filter_runs
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.lookup import ExperimentListing, choose_experiment

MIN_POINTS_TO_CACHE = 250_000
"""Minimum new points for a cache file; reading fewer points from the database again is faster."""
_RUNS_IN_FIRST_BLOCK = 16
"""Runs in the first block to read, whose number of points determines the sizes of later blocks."""
_MAX_RUNS_PER_QUERY = 900
"""With more run ids in a query, some servers scan the whole table."""

POINT_DTYPE = np.dtype([("group", np.int64), ("step", np.int64), ("value", np.float64), ("time", np.int64)])
"""A metric point: `group` is run index * metrics + metric index, `time` is in milliseconds since 1970."""
PointBlock: TypeAlias = np.ndarray[Any, Any]
"""Points of several runs, shape (n,), dtype `POINT_DTYPE`."""
PointReader: TypeAlias = Callable[[Sequence[str]], PointBlock]
"""Function that returns the points of runs from their ids."""
Item = TypeVar("Item")
Result = TypeVar("Result")
NAN_PLACEHOLDER = float(np.nextafter(collect.STORED_INFINITY, 0.0))
"""Stands for NaN in the results of databases that cannot store NaN; no real metric is as large."""

_EXPERIMENTS_QUERY = "SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id"
_STUDY_FILES_QUERY = """
    SELECT e.experiment_id, e.name, t.key, t.value FROM experiments e LEFT JOIN experiment_tags t
    ON t.experiment_id = e.experiment_id AND t.key LIKE 'advisor.study_file%'
    WHERE e.lifecycle_stage = 'active' ORDER BY e.experiment_id, t.key
"""
_EXPERIMENT_TAGS_QUERY = (
    f"SELECT t.key, substr(t.value, 1, {collect.MAX_TEXT_CHARS}) FROM experiment_tags t WHERE t.experiment_id = "
)
_RUNS_QUERY = """
    SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs
    WHERE lifecycle_stage = 'active' AND experiment_id =
"""
# The name `key` is reserved in MySQL unless it follows the name of a table.
_PARAMS_QUERY = f"SELECT t.run_uuid, t.key, substr(t.value, 1, {collect.MAX_TEXT_CHARS}) FROM params t WHERE t.run_uuid IN "
# A run may have millions of user-defined tags, so the query reads only tags that `collect.select_tags` can keep.
_NUMBERED_TAGS_QUERY = f"""
    SELECT t.run_uuid, t.key, substr(t.value, 1, {collect.MAX_TEXT_CHARS}) AS text,
    CASE WHEN substr(t.key, 1, 8) = 'advisor.' OR substr(t.key, 1, 14) = 'mlflow.source.' OR t.key IN {collect.MLFLOW_TAGS}
    THEN 0 ELSE row_number() OVER (
        PARTITION BY t.run_uuid, substr(t.key, 1, 7) = 'mlflow.', substr(t.key, 1, 8) = 'advisor.' ORDER BY t.key
    ) END AS place
    FROM tags t WHERE t.run_uuid IN
"""
_LAST_POINTS_QUERY = (
    "SELECT m.run_uuid, m.key, coalesce(m.timestamp, 0), m.step, m.value FROM latest_metrics m WHERE m.run_uuid IN "
)


class RunDatabase(ABC):
    points_per_query: int
    """Approximate maximum number of points that one query returns."""
    revision_query: str
    """SQL query for a value that changes whenever a point is added to the run `r.run_uuid`."""

    @abstractmethod
    def query(self, sql: str, *values: object) -> Sequence[Any]:
        """Return the rows of an SQL query, which has a `?` for each value."""

    @abstractmethod
    def point_reader(self, metrics: Mapping[str, int]) -> PointReader:
        """Return a function that reads the points of runs. metrics: index of each metric to read, by name."""

    def read_in_shares(self, items: Sequence[Item], read: Callable[[RunDatabase, Sequence[Item]], Result]) -> Sequence[Result]:
        """Call `read` for shares of the items, each with its own connection to one snapshot, and return the results."""
        return [read(self, items)]


@dataclass(frozen=True)
class SqlTrackingStore:
    """A `reading.Store` that reads a database by SQL. connect: see `sqlite.connect` and `servers.connect`."""

    location: StoreLocation
    connect: Callable[[StoreLocation], AbstractContextManager[RunDatabase]]

    def experiments(self) -> list[ExperimentListing]:
        with self.connect(self.location) as database:
            return _experiments(database)

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        with self.connect(self.location) as database:
            rows = database.query(_STUDY_FILES_QUERY)
        experiments: dict[str, tuple[str, dict[str, str]]] = {}
        for id, name, key, value in rows:
            tags = experiments.setdefault(str(id), (name, {}))[1]
            if key is not None:
                tags[key] = value
        return list(experiments.values())

    def read(self, experiment: str, *, filter: str | None, on_progress: Callable[[int, int], None]) -> Experiment:
        with self.connect(self.location) as database:
            listing = choose_experiment(experiment, _experiments(database), self.location)
            rows = database.query(f"{_RUNS_QUERY} {int(listing.id)}")
            rows = sorted(rows, key=lambda row: (row[3] is not None, row[3] or 0, row[0]))
            if filter:
                rows = filter_runs(database.query, rows, filter)
            tags = dict(map(tuple, database.query(f"{_EXPERIMENT_TAGS_QUERY} {int(listing.id)}")))
            stored_runs = _stored_runs(database, rows)
            points, warnings = read_points(
                stored_runs,
                cache_of_experiment(self.location, listing.id),
                partial(_add_points, database, stored_runs, on_progress),
                tracking_uri=None,
                min_points_to_cache=MIN_POINTS_TO_CACHE,
                on_progress=on_progress,
            )
            runs, autopsy_warnings = add_autopsies(stored_runs, None)
            all_warnings = (*warnings, *autopsy_warnings)
            return Experiment(listing.name, tuple(s.run for s in runs), points, collect.select_tags(tags), all_warnings)


def _experiments(database: RunDatabase) -> list[ExperimentListing]:
    return [ExperimentListing(str(id), name, stage == "deleted") for id, name, stage in database.query(_EXPERIMENTS_QUERY)]


def sql_placeholders(count: int) -> str:
    return f"({', '.join('?' * count)})"


def _query_runs(database: RunDatabase, sql: str, ids: Sequence[str], end: str = "") -> Iterator[Any]:
    for start in range(0, len(ids), _MAX_RUNS_PER_QUERY):
        some_ids = ids[start : start + _MAX_RUNS_PER_QUERY]
        yield from database.query(f"{sql} {sql_placeholders(len(some_ids))} {end}", *some_ids)


def _stored_runs(database: RunDatabase, rows: Sequence[Any]) -> list[StoredRun]:
    ids = [row[0] for row in rows]
    params: dict[str, dict[str, str | None]] = {id: {} for id in ids}
    for id, key, text in _query_runs(database, _PARAMS_QUERY, ids):
        params[id][key] = text
    tags: dict[str, dict[str, str | None]] = {id: {} for id in ids}
    selected_tags = f"SELECT n.run_uuid, n.key, n.text FROM ({_NUMBERED_TAGS_QUERY}"
    for id, key, text in _query_runs(database, selected_tags, ids, f") n WHERE n.place <= {collect.MAX_USER_TAGS}"):
        tags[id][key] = text
    last_points: dict[str, dict[str, LastPoint]] = {id: {} for id in ids}
    for id, key, time, step, value in _query_runs(database, _LAST_POINTS_QUERY, ids):
        if not key.startswith(collect.SYSTEM_METRIC_PREFIX):
            last_points[id][key] = LastPoint(int(time), int(step), value)
    sql = f"SELECT r.run_uuid, ({database.revision_query}) FROM runs r WHERE r.run_uuid IN "
    shares = database.read_in_shares(ids, lambda connection, some: list(_query_runs(connection, sql, some)))
    revisions = {id: revision for share in shares for id, revision in share}
    return [
        StoredRun(
            collect.make_run(id=id, name=name, status=status, start_ms=start, end_ms=end, params=params[id], tags=tags[id]),
            root or "",
            last_points[id],
            revisions.get(id),
        )
        for id, name, status, start, end, root, _ in rows
    ]


def _add_points(
    database: RunDatabase,
    stored: Sequence[StoredRun],
    on_progress: Callable[[int, int], None],
    indices: Sequence[int],
    _: Sequence[SidecarCurves | None],
    collector: collect.PointCollector,
) -> None:
    """Add the points of the runs with these indices to the collector, by one query per block of runs."""
    metrics = sorted({metric for i in indices for metric in stored[i].last_points})
    metric_indices = {name: i for i, name in enumerate(metrics)}
    readers: dict[RunDatabase, PointReader] = {}

    def read(connection: RunDatabase, some: Sequence[int]) -> tuple[Sequence[int], PointBlock]:
        if connection not in readers:
            readers[connection] = connection.point_reader(metric_indices)
        return some, readers[connection]([stored[i].run.id for i in some])

    size, rest = _RUNS_IN_FIRST_BLOCK, list(indices) if metrics else []
    while rest:
        some, rest = rest[:size], rest[size:]
        points = 0
        for share, block in database.read_in_shares(some, read):
            points += len(block)
            if len(block):
                _add_block(block, np.array(share), metrics, collector)
        on_progress(len(stored) - len(rest), len(stored))
        size = max(1, min(4 * size, size * database.points_per_query // max(points, 1), _MAX_RUNS_PER_QUERY))


def _add_block(
    block: PointBlock, run_of_place: collect.IntArray, metrics: Sequence[str], collector: collect.PointCollector
) -> None:
    place, metric = np.divmod(block["group"], len(metrics))
    order = np.argsort(metric.astype(np.int16 if len(metrics) < 2**15 else np.int64), kind="stable")
    runs, values, steps, times = run_of_place[place[order]], block["value"][order], block["step"][order], block["time"][order]
    metric_bounds = np.searchsorted(metric[order], np.arange(len(metrics) + 1))
    for i, name in enumerate(metrics):
        metric_points = slice(metric_bounds[i], metric_bounds[i + 1])
        collector.add(name, runs[metric_points], steps[metric_points], values[metric_points], times[metric_points])


def check_schema_version(database: RunDatabase, store: object) -> None:
    """Raise AdvisorError if the database schema is newer than the installed MLflow. store: text that names the store."""
    versions = database.query("SELECT version_num FROM alembic_version")
    known_versions = _known_schema_versions()
    if known_versions and versions and versions[0][0] not in known_versions:
        raise AdvisorError(
            f"{store} was written by a newer MLflow than the one installed here; run: pip install --upgrade mlflow-skinny"
        )


def _known_schema_versions() -> set[str]:
    """Read the versions from the names of MLflow's migrations, because importing MLflow is slow."""
    spec = find_spec("mlflow")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    files = (f for folder in folders for f in Path(folder, "store", "db_migrations", "versions").glob("[0-9a-f]*_*.py"))
    return {file.name.split("_", 1)[0] for file in files}
