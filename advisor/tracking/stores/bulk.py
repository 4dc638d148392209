"""Reads metric histories from a server by bulk requests, as MLflow's UI does. Silently truncated curves are read again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from advisor.model.space import BoolArray
from advisor.tracking.points import collect

_REQUEST_PATH = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
_MAX_POINTS_PER_RESPONSE = 25_000
"""Maximum number of points that MLflow puts into one response."""
_MAX_RUNS_PER_REQUEST = 100
"""Maximum number of runs that MLflow accepts in one request."""
_RUNS_IN_FIRST_BATCH = 25
_PLANNED_RESPONSE_FILL = 0.8
"""Planned share of a response's maximum number of points; below 1, few responses are truncated."""


class CurveRequest(NamedTuple):
    metric: str
    run: int
    """Index of the run in the experiment."""
    id: str
    last_step: int
    """Without a point at this step, a response is incomplete."""


def read_histories(
    client: Any,
    curves: Iterable[CurveRequest],
    collector: collect.PointCollector,
    threads: int,
    on_progress: Callable[[int], None],
) -> list[CurveRequest]:
    """Add the complete histories to the collector; return the curves that bulk requests did not return completely. on_progress
    receives the number of curves read. Raises the MLflow client's error if the server does not respond."""
    queue = _CurveQueue(curves, on_progress)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="advisor-read")

    def work() -> None:
        while part := queue.next_batch():
            try:
                counts, points = _request_histories(client, part)
            except BaseException:
                queue.stop_reading()
                raise
            for columns in points:
                collector.add(part[0].metric, *columns)
            queue.record_batch(part, counts)

    try:
        for worker in [pool.submit(work) for _ in range(threads)]:
            worker.result()
    finally:
        queue.stop_reading()
        pool.shutdown(cancel_futures=True)
    return queue.refused


class _CurveQueue:
    """Thread-safe queue of curves to read. The curves in a batch belong to one metric, and their points fit into one response."""

    def __init__(self, curves: Iterable[CurveRequest], on_progress: Callable[[int], None]) -> None:
        self._on_progress, self._read = on_progress, 0
        self._lock = threading.Lock()
        self._waiting = [list(same) for _, same in groupby(sorted(curves), key=lambda curve: curve.metric)]
        self._size: dict[str, int] = {}
        self.refused: list[CurveRequest] = []

    def next_batch(self) -> list[CurveRequest]:
        with self._lock:
            if not self._waiting:
                return []
            next_curve = self._waiting[-1]
            size = self._size.get(next_curve[0].metric, _RUNS_IN_FIRST_BATCH)
            part, next_curve[:] = next_curve[:size], next_curve[size:]
            if not next_curve:
                self._waiting.pop()
            return part

    def record_batch(self, batch: Sequence[CurveRequest], counts: dict[int, int] | None) -> None:
        """counts: number of points by run, for complete histories, or None if the server does not support bulk requests."""
        with self._lock:
            sizes = counts or {}
            self._read += len(sizes)
            unread_curves = [curve for curve in batch if curve.run not in sizes]
            if counts is None or (unread_curves and len(batch) == 1):
                self.refused += unread_curves
            elif unread_curves:
                self._waiting.append(unread_curves)
            max_runs = int(_PLANNED_RESPONSE_FILL * _MAX_POINTS_PER_RESPONSE / max(sizes.values())) if sizes else 1
            self._size[batch[0].metric] = max(1, min(_MAX_RUNS_PER_REQUEST, max_runs))
            self._on_progress(self._read)

    def stop_reading(self) -> None:
        with self._lock:
            self._waiting.clear()


def _request_histories(client: Any, batch: Sequence[CurveRequest]) -> tuple[dict[int, int] | None, list[collect.PointColumns]]:
    """Return (points by run, points of the complete histories), or (None, []) if the response is unusable."""
    from mlflow.utils.rest_utils import http_request

    host = client._tracking_client.store.get_host_creds()
    ids = [curve.id for curve in batch]
    params = {"run_id": ids, "metric_key": batch[0].metric, "max_results": _MAX_POINTS_PER_RESPONSE}
    answer = http_request(host, _REQUEST_PATH, "GET", raise_on_status=False, params=params)  # type: ignore[no-untyped-call]
    if answer.status_code != 200:  # the server does not run MLflow, or a proxy blocks the request
        return None, []
    number = {curve.id: i for i, curve in enumerate(batch)}
    try:
        metrics = json.loads(answer.content)["metrics"]
        curve_indices = np.fromiter((number[m["run_id"]] for m in metrics), np.int64, len(metrics))
        steps = np.fromiter((m["step"] for m in metrics), np.int64, len(metrics))
        values = np.fromiter((m["value"] for m in metrics), np.float64, len(metrics))
        times = np.fromiter((m["timestamp"] for m in metrics), np.int64, len(metrics))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):  # for example, a proxy returned an HTML page
        return None, []
    is_complete = _find_complete_curves(batch, curve_indices, steps)
    runs = np.array([curve.run for curve in batch])
    is_usable = is_complete[curve_indices]
    points = np.bincount(curve_indices, minlength=len(batch))
    counts = {curve.run: int(n) for curve, n, whole in zip(batch, points, is_complete, strict=True) if whole}
    return counts, [(runs[curve_indices[is_usable]], steps[is_usable], values[is_usable], times[is_usable])]


def _find_complete_curves(batch: Sequence[CurveRequest], place: collect.IntArray, steps: collect.IntArray) -> BoolArray:
    """Return a mask of shape (curves,); the last curve of a truncated response counts as incomplete."""
    last_steps = np.full(len(batch), np.iinfo(np.int64).min)
    np.maximum.at(last_steps, place, steps)
    complete = last_steps >= [curve.last_step for curve in batch]
    if len(place) >= _MAX_POINTS_PER_RESPONSE:
        complete[place[-1]] = False
    return complete
