"""Histories of many runs in one answer of a tracking server, which is many times as fast as one history at a time.

MLflow's call is made for its own pages and cuts long answers off without a word; what was cut off is asked for again.
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
_ROWS = 25_000
"""The most that MLflow gives in an answer."""
_RUNS = 100
"""The most that MLflow lets itself be asked for."""
_FIRST_RUNS = 25
_FILLED = 0.8
"""Share of an answer that is reckoned with, so that few are cut off."""


class Curve(NamedTuple):
    """A metric of a run, to be read."""

    metric: str
    run: int
    """Index of the run."""
    id: str
    last_step: int
    """Step of its last point, which a whole history has."""


def histories(
    client: Any, wanted: Iterable[Curve], collector: collect.Collector, threads: int, tell: Callable[[int], None]
) -> list[Curve]:
    """Add whole histories to the collector; gives those back that the server does not give so.

    tell: told how many curves were read. Raises what MLflow's client raises where the server does not answer at all.
    """
    queue = _Queue(wanted, tell)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="advisor-read")

    def work() -> None:
        while part := queue.take():
            try:
                found, points = _ask(client, part)
            except BaseException:
                queue.stop()
                raise
            for columns in points:
                collector.add(part[0].metric, *columns)
            queue.done(part, found)

    try:
        for finished in [pool.submit(work) for _ in range(threads)]:
            finished.result()
    finally:
        queue.stop()
        pool.shutdown(cancel_futures=True)
    return queue.refused


class _Queue:
    """Shares curves out among threads in parts of one metric, as large as answers may be."""

    def __init__(self, wanted: Iterable[Curve], tell: Callable[[int], None]) -> None:
        self._tell, self._read = tell, 0
        self._lock = threading.Lock()
        self._left = [list(same) for _, same in groupby(sorted(wanted), key=lambda curve: curve.metric)]
        self._size: dict[str, int] = {}
        self.refused: list[Curve] = []

    def take(self) -> list[Curve]:
        """The next part; empty if there is none."""
        with self._lock:
            if not self._left:
                return []
            same = self._left[-1]
            size = self._size.get(same[0].metric, _FIRST_RUNS)
            part, same[:] = same[:size], same[size:]
            if not same:
                self._left.pop()
            return part

    def done(self, part: Sequence[Curve], points: dict[int, int] | None) -> None:
        """Note how many points each run has that was read whole; None where the server is not to be asked so."""
        with self._lock:
            found = points or {}
            self._read += len(found)
            rest = [curve for curve in part if curve.run not in found]
            if points is None or (rest and len(part) == 1):
                self.refused += rest
            elif rest:
                self._left.append(rest)
            fitting = int(_FILLED * _ROWS / max(found.values())) if found else 1
            self._size[part[0].metric] = max(1, min(_RUNS, fitting))
            self._tell(self._read)

    def stop(self) -> None:
        """Give out no more."""
        with self._lock:
            self._left.clear()


def _ask(client: Any, part: Sequence[Curve]) -> tuple[dict[int, int] | None, list[collect.Columns]]:
    """The number of points of each run whose history the answer has whole, and their columns; None if it is no such answer."""
    from mlflow.utils.rest_utils import http_request

    answer = http_request(  # type: ignore[no-untyped-call]
        client._tracking_client.store.get_host_creds(),
        _PATH,
        "GET",
        raise_on_status=False,
        params={"run_id": [curve.id for curve in part], "metric_key": part[0].metric, "max_results": _ROWS},
    )
    if answer.status_code != 200:  # a server that is none of MLflow's, or a proxy that lets no such call pass
        return None, []
    number = {curve.id: i for i, curve in enumerate(part)}
    try:
        found = json.loads(answer.content)["metrics"]
        place = np.fromiter((number[m["run_id"]] for m in found), np.int64, len(found))
        steps = np.fromiter((m["step"] for m in found), np.int64, len(found))
        values = np.fromiter((m["value"] for m in found), np.float64, len(found))
        times = np.fromiter((m["timestamp"] for m in found), np.int64, len(found))
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # also where a proxy answers with a page of its own
        return None, []
    whole = _whole(part, place, steps)
    runs = np.array([curve.run for curve in part])
    keep = whole[place]
    points = np.bincount(place, minlength=len(part))
    read = {curve.run: int(n) for curve, n, all_of_it in zip(part, points, whole, strict=True) if all_of_it}
    return read, [(runs[place[keep]], steps[keep], values[keep], times[keep])]


def _whole(part: Sequence[Curve], place: collect.IntArray, steps: collect.IntArray) -> BoolArray:
    """Which of the curves the answer has to their last step, shape (curves,); the last run of one that was cut off is not whole."""
    last = np.full(len(part), np.iinfo(np.int64).min)
    np.maximum.at(last, place, steps)
    whole = last >= [curve.last_step for curve in part]
    if len(place) >= _ROWS:
        whole[place[-1]] = False
    return whole
