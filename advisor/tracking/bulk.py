"""Histories of many runs in one answer of a tracking server, which is several times as fast as one history at a time.

MLflow's call is made for charts: of histories with more steps than it was asked for it gives some. Such an answer is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from advisor.tracking import collect

RUNS_AT_ONCE = 25
"""Of MLflow's limit of 100: the more runs, the more steps they have between them, and the slower the progress bar."""
_STEPS = 2500
"""The most that MLflow gives of a run."""
_SURELY_ALL = 0.9
"""Share of `_STEPS` below which an answer was not thinned, whatever the server's rounding."""
_PATH = "/api/2.0/mlflow/metrics/get-history-bulk-interval"


def histories(client: Any, ids: Sequence[str], runs: Sequence[int], metric: str, collector: collect.Collector) -> bool:
    """Add the histories of one metric to the collector, if the answer has all of them; else False, and nothing is added.

    ids: of at most 100 runs; runs: their numbers. Raises what MLflow's client raises where the server does not answer at all.
    """
    from mlflow.utils.rest_utils import http_request

    answer = http_request(  # type: ignore[no-untyped-call]
        client._tracking_client.store.get_host_creds(),
        _PATH,
        "GET",
        raise_on_status=False,
        params={"run_ids": list(ids), "metric_key": metric, "max_results": _STEPS},
    )
    if answer.status_code != 200:  # an older server, or a proxy that lets no such call pass
        return False
    number = dict(zip(ids, runs, strict=True))
    try:
        found = answer.json().get("metrics", [])
        of_run = np.fromiter((number[m["run_id"]] for m in found), np.int64, len(found))
        steps = np.fromiter((int(m.get("step", 0)) for m in found), np.int64, len(found))
        times = np.fromiter((int(m.get("timestamp", 0)) for m in found), np.int64, len(found))
        values = np.fromiter((float(m.get("value", 0.0)) for m in found), np.float64, len(found))
    except (AttributeError, KeyError, TypeError, ValueError):  # also where a proxy answers with a page of its own
        return False
    if not _has_all(of_run, steps, len(ids)):
        return False
    collector.add(metric, of_run, steps, values, times)
    return True


def _has_all(of_run: collect.IntArray, steps: collect.IntArray, runs: int) -> bool:
    """Whether nothing was thinned: fewer steps between all runs, and points of each, than are thinned; and no run without any."""
    _, points = np.unique(of_run, return_counts=True)
    most = _SURELY_ALL * _STEPS
    return len(points) == runs and len(np.unique(steps)) < most and int(points.max()) < most
