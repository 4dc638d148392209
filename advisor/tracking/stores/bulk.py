"""Reads the histories of many runs in one answer of a tracking server, many times as fast as one history at a time.

MLflow made this request for its own pages and truncates long answers silently; we ask again for the curves that were truncated.
"""

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

_PATH = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
_MAX_POINTS = 25_000
"""Maximum points of an answer, by MLflow."""
_MAX_RUNS = 100
"""Maximum runs of a request, by MLflow."""
_FIRST_RUNS = 25
_FILL = 0.8
"""Share of an answer that we plan to use, so that few are truncated."""


class Curve(NamedTuple):
    """A metric of a run, to be read."""

    metric: str
    run: int
    """Index of the run."""
    id: str
    """The run's id."""
    last_step: int
    """Step of its last point, which a complete history has."""


def read_histories(
    client: Any,
    curves: Iterable[Curve],
    collector: collect.Collector,
    threads: int,
    on_progress: Callable[[int], None],
) -> list[Curve]:
    """Add complete histories to the collector; return the curves that the server does not deliver in this way.

    on_progress: called with the number of curves read. Raises what MLflow's client raises if the server does not answer at all.
    """
    queue = _Queue(curves, on_progress)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="advisor-read")

    def work() -> None:
        while part := queue.take():
            try:
                counts, points = _request(client, part)
            except BaseException:
                queue.stop()
                raise
            for columns in points:
                collector.add(part[0].metric, *columns)
            queue.finish(part, counts)

    try:
        for worker in [pool.submit(work) for _ in range(threads)]:
            worker.result()
    finally:
        queue.stop()
        pool.shutdown(cancel_futures=True)
    return queue.refused


class _Queue:
    """Gives threads curves of one metric, as many as fit into an answer."""

    def __init__(self, curves: Iterable[Curve], on_progress: Callable[[int], None]) -> None:
        self._on_progress, self._read = on_progress, 0
        self._lock = threading.Lock()
        self._waiting = [list(same) for _, same in groupby(sorted(curves), key=lambda curve: curve.metric)]
        self._size: dict[str, int] = {}
        self.refused: list[Curve] = []

    def take(self) -> list[Curve]:
        """Return the next curves; an empty list at the end."""
        with self._lock:
            if not self._waiting:
                return []
            same = self._waiting[-1]
            size = self._size.get(same[0].metric, _FIRST_RUNS)
            part, same[:] = same[:size], same[size:]
            if not same:
                self._waiting.pop()
            return part

    def finish(self, part: Sequence[Curve], counts: dict[int, int] | None) -> None:
        """Note the number of points of each run whose history is complete; None if the server does not support the request."""
        with self._lock:
            complete = counts or {}
            self._read += len(complete)
            rest = [curve for curve in part if curve.run not in complete]
            if counts is None or (rest and len(part) == 1):
                self.refused += rest
            elif rest:
                self._waiting.append(rest)
            fitting = int(_FILL * _MAX_POINTS / max(complete.values())) if complete else 1
            self._size[part[0].metric] = max(1, min(_MAX_RUNS, fitting))
            self._on_progress(self._read)

    def stop(self) -> None:
        """Drop all waiting curves."""
        with self._lock:
            self._waiting.clear()


def _request(client: Any, part: Sequence[Curve]) -> tuple[dict[int, int] | None, list[collect.Columns]]:
    """Return the number of points of each run whose history is complete, and its columns; (None, []) for any other answer."""
    from mlflow.utils.rest_utils import http_request

    answer = http_request(  # type: ignore[no-untyped-call]
        client._tracking_client.store.get_host_creds(),
        _PATH,
        "GET",
        raise_on_status=False,
        params={"run_id": [curve.id for curve in part], "metric_key": part[0].metric, "max_results": _MAX_POINTS},
    )
    if answer.status_code != 200:  # not MLflow's own server, or a proxy that blocks the request
        return None, []
    number = {curve.id: i for i, curve in enumerate(part)}
    try:
        metrics = json.loads(answer.content)["metrics"]
        place = np.fromiter((number[m["run_id"]] for m in metrics), np.int64, len(metrics))
        steps = np.fromiter((m["step"] for m in metrics), np.int64, len(metrics))
        values = np.fromiter((m["value"] for m in metrics), np.float64, len(metrics))
        times = np.fromiter((m["timestamp"] for m in metrics), np.int64, len(metrics))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):  # such as a proxy's page
        return None, []
    complete = _complete(part, place, steps)
    runs = np.array([curve.run for curve in part])
    keep = complete[place]
    points = np.bincount(place, minlength=len(part))
    counts = {curve.run: int(n) for curve, n, whole in zip(part, points, complete, strict=True) if whole}
    return counts, [(runs[place[keep]], steps[keep], values[keep], times[keep])]


def _complete(part: Sequence[Curve], place: collect.IntArray, steps: collect.IntArray) -> BoolArray:
    """Return which curves reach their last step, shape (curves,); the last curve of a truncated answer does not count."""
    last = np.full(len(part), np.iinfo(np.int64).min)
    np.maximum.at(last, place, steps)
    complete = last >= [curve.last_step for curve in part]
    if len(place) >= _MAX_POINTS:
        complete[place[-1]] = False
    return complete
