"""What reading a database by SQL is the same for whichever database it is: blocks of runs, points by metric, sidecars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from advisor import contract
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.model.space import BoolArray
from advisor.tracking.points import cache, collect, sidecar
from advisor.tracking.points.sidecar import Full, Source, longest, prefer
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores.location import Location
from advisor.tracking.stores.lookup import Listed, choose

POINTS_AT_ONCE = 250_000
"""Points read by one query: a writer waits for one query to end, never for the whole reading."""
WORTH_KEEPING = 250_000
"""Points that a database takes longer to give than a file to write."""
_FIRST_RUNS = 16

POINT = np.dtype([("group", np.int64), ("step", np.int64), ("value", np.float64), ("time", np.int64)])
"""The group is run * metrics + metric; the time is in milliseconds."""
Block = np.ndarray[Any, Any]
"""Points, shape (n,)."""
Latest = tuple[int, str, int, int, float | None]
"""The last point of a curve: its run, its metric, time in milliseconds, step and value."""
Found = tuple[Any, ...]
"""A run's id, name, status, start and end in milliseconds, artifact folder and user."""
NAN = float(np.nextafter(collect.LARGEST, 0.0))
"""Stands for NaN on the way from a database that knows none to NumPy; no metric is that large."""


class Database(Protocol):
    """What reading asks the server of a database; where it asks of runs by their ids, answers name them by their places."""

    def experiments(self) -> list[Listed]:
        """All experiments, also deleted ones."""

    def runs(self, experiment: int) -> Sequence[Found]:
        """The runs that were not deleted, in the order of their start."""

    def execute(self, sql: str, values: tuple[str, ...]) -> Iterable[Any]:
        """The rows of a query of `filtering`."""

    def experiment_tags(self, experiment: int) -> Iterable[Any]:
        """(key, value cut to `collect.MAX_TEXT`)."""

    def params(self, ids: list[str]) -> Iterable[Any]:
        """(run, key, value cut to `collect.MAX_TEXT`)."""

    def tags(self, ids: list[str]) -> Iterable[Any]:
        """As `params`; at least what `collect.keep_tags` keeps: this only keeps millions of others inside the database."""

    def latest(self, ids: list[str]) -> Iterable[Latest]:
        """The last point of each curve."""

    def added(self, ids: list[str]) -> Iterable[Any]:
        """(run, what changes with every point that is added to it, whatever its step)."""

    def points(self, metrics: Mapping[str, int], ids: list[str]) -> Block:
        """The points of the metrics, which come with their places."""


def read(
    database: Database,
    location: Location,
    experiment: str,
    *,
    filter: str | None,
    system_metrics: bool,
    on_progress: Callable[[int, int], None],
    points_at_once: int,
) -> Experiment:
    """The experiment of that name or id; points_at_once: see `gather`."""
    chosen = choose(experiment, database.experiments(), location)
    found = database.runs(int(chosen.id))
    if filter:
        from advisor.tracking.stores.filtering import matching

        found = matching(database.execute, found, filter)
    ids = [row[0] for row in found]
    runs = _runs(found, database.params(ids), database.tags(ids))
    latest = list(database.latest(ids))
    wanted = sources(runs, [row[5] for row in found], latest)
    kept, collector = cache.of_experiment(location, chosen.id), collect.Collector()
    known = kept.fill(keys(runs, wanted, latest, dict(database.added(ids)), system_metrics), collector)
    names = {key for i, key, *_ in latest if not known[i]}
    metrics = sorted(key for key in names if system_metrics or not key.startswith(collect.SYSTEM_PREFIX))
    # A known run keeps its place, under no id.
    unknown = ["" if skip else id for id, skip in zip(ids, known, strict=True)]
    places = {name: i for i, name in enumerate(metrics)}

    def block(start: int, stop: int) -> Block:
        points = database.points(places, unknown[start:stop])
        points["group"] += start * len(metrics)
        return points

    gather(len(ids), metrics, block, collector, on_progress, points_at_once=points_at_once)
    full, warnings, unusable = read_sidecars(wanted, known, on_progress)
    prefer(full, collector)
    return Experiment(
        name=chosen.name,
        runs=runs,
        points=kept.points(collector, worth=WORTH_KEEPING, but=unusable),
        tags=collect.keep_tags(dict(database.experiment_tags(int(chosen.id)))),
        warnings=warnings,
    )


def _runs(found: Sequence[Found], params: Iterable[Any], tags: Iterable[Any]) -> tuple[Run, ...]:
    params_of, tags_of = collect.text_maps(params, len(found)), collect.text_maps(tags, len(found))
    return tuple(
        collect.make_run(
            id=id, name=name, status=status, start_ms=start, end_ms=end, params=params_of[i], tags=tags_of[i]
        )
        for i, (id, name, status, start, end, *_) in enumerate(found)
    )


def listed(found: Iterable[Any]) -> list[Listed]:
    """Experiments from (id, name, lifecycle stage)."""
    return [Listed(id=str(id), name=name, deleted=stage == "deleted") for id, name, stage in found]


def gather(
    runs: int,
    metrics: Sequence[str],
    read: Callable[[int, int], Block],
    collector: collect.Collector,
    on_progress: Callable[[int, int], None],
    *,
    points_at_once: int = POINTS_AT_ONCE,
) -> None:
    """All points, by blocks of runs; `read` gives the points of the runs from its first argument on, up to its second."""
    done, at_once = 0, _FIRST_RUNS
    while done < runs:
        block = read(done, done + at_once)
        _split(block, metrics, collector)
        done = min(done + at_once, runs)
        on_progress(done, runs)
        at_once = max(1, min(4 * at_once, at_once * points_at_once // max(len(block), 1)))


def _split(block: Block, metrics: Sequence[str], collector: collect.Collector) -> None:
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


def keys(
    runs: Sequence[Run],
    sources: Sequence[Source | None],
    latest: Iterable[Latest],
    added: Mapping[int, object],
    system_metrics: bool,
) -> list[str | None]:
    """What the cache knows the runs by; `added` is what tells of each whether a point came in between, whatever its step."""
    last: list[list[tuple[str, int, int, str]]] = [[] for _ in runs]
    for i, metric, time, step, value in latest:
        last[i].append((metric, time, step, repr(value)))
    limit = longest(sum(source is not None for source in sources))
    return [
        None
        if run.status in ("RUNNING", "SCHEDULED")
        else cache.key(run.id, run.status, run.started, run.ended, added.get(i), sorted(mine), system_metrics)
        + (cache.key(source.tag, source.root, limit) if source is not None else "")
        for i, (run, mine, source) in enumerate(zip(runs, last, sources, strict=True))
    ]


def sources(runs: Sequence[Run], roots: Sequence[str | None], latest: Iterable[Latest]) -> list[Source | None]:
    """Where to look for curves at full resolution: for the runs of which the store has only windows of some.

    roots: the runs' artifact folders.
    """
    stored: list[dict[str, int]] = [{} for _ in runs]
    for i, key, time, *_ in latest:
        stored[i][key] = time
    return [
        Source(run.tags[contract.TAG_SIDECAR], root or "", mine)
        if contract.TAG_SIDECAR in run.tags
        and run.status not in ("RUNNING", "SCHEDULED")
        and any(key + contract.MAX_SUFFIX in mine for key in mine)
        else None
        for run, root, mine in zip(runs, roots, stored, strict=True)
    ]


def read_sidecars(
    sources: Sequence[Source | None], known: BoolArray, on_progress: Callable[[int, int], None]
) -> tuple[list[Full | None], tuple[str, ...], list[int]]:
    """What the sidecars of the runs have that are not known, warnings, and the runs whose sidecar cannot be used."""
    wanted = [None if known[i] else source for i, source in enumerate(sources)]
    limit = longest(sum(source is not None for source in sources))
    full, warnings = sidecar.read_sidecars(
        wanted, tracking_uri=None, limit=limit, reducing=False, on_progress=on_progress
    )
    return full, warnings, [i for i, source in enumerate(wanted) if source is not None and full[i] is None]


def check_version(version: str | None, where: object) -> None:
    """Refuse the schema of an MLflow that is newer than the installed one; None where the store does not say."""
    known = known_versions()
    if known and version is not None and version not in known:
        raise AdvisorError(
            f"{where} was written by a newer MLflow than the one installed here; run: pip install --upgrade mlflow-skinny"
        )


def refusal(reason: Literal["no store", "old schema", "no privilege", "out of reach"], where: str) -> AdvisorError:
    """Why a server's database cannot be read, in one line that says what to do."""
    said = {
        "no store": f"{where} holds no MLflow store; pass the database that your tracking server uses",
        "old schema": f"{where} has the schema of an older MLflow; back it up and run: mlflow db upgrade",
        "no privilege": f"{where} refuses to be read; the user needs SELECT on the tables of MLflow",
        "out of reach": f"cannot reach {where}; is the database running, and are user and password right?",
    }
    return AdvisorError(said[reason])


def short(said: object) -> str:
    """What a driver says, on one line of bearable length, without credentials."""
    return " ".join(redact(str(said)).split())[:300]


def known_versions() -> set[str]:
    """The schema versions that the installed MLflow has a migration to; read from its files' names, as importing it is slow."""
    spec = find_spec("mlflow")
    folders = spec.submodule_search_locations if spec is not None else None
    return {
        file.name.split("_", 1)[0]
        for folder in folders or ()
        for file in Path(folder, "store", "db_migrations", "versions").glob("[0-9a-f]*_*.py")
    }
