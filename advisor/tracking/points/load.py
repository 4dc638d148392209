"""Reads the points of an experiment's runs from the cache, from sidecars, or else from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from advisor import contract
from advisor.tracking.points.cache import PointCache, run_digest
from advisor.tracking.points.collect import PointCollector
from advisor.tracking.points.sidecar import SidecarCurves, SidecarSource, max_curve_points, read_sidecars, replace_by_sidecars
from advisor.tracking.runs import Points, Run


class LastPoint(NamedTuple):
    time_ms: int
    step: int
    value: float | None


class StoredRun(NamedTuple):
    """A run, and the facts about its points that the store returns without reading the points."""

    run: Run
    artifact_root: str
    last_points: Mapping[str, LastPoint]
    """Last point of each curve by metric, without system metrics."""
    revision: int | None = None
    """Value that changes whenever a point is added. Without it, points before a curve's last one may be missed."""


ReadFromStore: TypeAlias = Callable[[Sequence[int], Sequence[SidecarCurves | None], PointCollector], None]
"""Function that adds the points of the runs with these indices to the collector, except curves that a sidecar covers."""


def read_points(
    stored: Sequence[StoredRun],
    cache: PointCache,
    read_from_store: ReadFromStore,
    *,
    tracking_uri: str | None,
    min_points_to_cache: int,
    on_progress: Callable[[int, int], None],
) -> tuple[dict[str, Points], tuple[str, ...]]:
    """Return (points by metric, warnings). tracking_uri: the server of the runs, or None for a database, which is so fast that
    only its windowed curves are read from sidecars. min_points_to_cache: minimum new points for a cache file."""
    of_database = tracking_uri is None
    sources = [_sidecar_source(run, only_for_windows=of_database) for run in stored]
    limit = max_curve_points(len(sources) - sources.count(None))
    collector = PointCollector()
    is_cached = cache.load([_cache_key(run, source, limit) for run, source in zip(stored, sources, strict=True)], collector)
    sources = [None if is_cached[i] else source for i, source in enumerate(sources)]
    sidecars, warnings = read_sidecars(
        sources, tracking_uri=tracking_uri, limit=limit, reducing=not of_database, on_progress=on_progress
    )
    read_from_store([i for i in range(len(stored)) if not is_cached[i]], sidecars, collector)
    on_progress(len(stored), len(stored))
    replace_by_sidecars(sidecars, collector)
    unusable_runs = [i for i, source in enumerate(sources) if source is not None and sidecars[i] is None]
    return cache.save(collector, min_points=min_points_to_cache, except_runs=unusable_runs), warnings


def _sidecar_source(stored: StoredRun, *, only_for_windows: bool) -> SidecarSource | None:
    tag = stored.run.tags.get(contract.TAG_CURVE_FILES)
    points = stored.last_points
    if not tag or stored.run.unfinished or (only_for_windows and not any(m + contract.MAX_SUFFIX in points for m in points)):
        return None
    return SidecarSource(tag, stored.artifact_root, {metric: point.time_ms for metric, point in points.items()})


def _cache_key(stored: StoredRun, source: SidecarSource | None, max_points: int) -> str | None:
    if stored.run.unfinished:
        return None
    run = stored.run
    sidecar = () if source is None else (source.sidecar_tag, source.artifact_root, max_points)
    last_points = sorted((metric, p.time_ms, p.step, repr(p.value)) for metric, p in stored.last_points.items())
    return run_digest(run.id, run.status, run.started, run.ended, stored.revision, sidecar, last_points)
