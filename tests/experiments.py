"""Compares experiments that different readers return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.model.errors import AdvisorError
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.client_store import ClientStore
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.reading import list_experiments, read_experiment

START_S = 1_600_000_000.0


def same(a: Experiment, b: Experiment, *, ids: bool = True) -> None:
    """Assert that two experiments are equal. ids: whether to compare run ids and users, which differ between stores."""

    def tags(run_tags):
        return {k: v for k, v in run_tags.items() if ids or k not in ("mlflow.parentRunId", "mlflow.user")}

    assert a.name == b.name
    assert a.tags == b.tags
    assert len(a.runs) == len(b.runs)
    for x, y in zip(a.runs, b.runs, strict=True):
        assert (x.name, x.status, x.params, x.started, x.ended) == (y.name, y.status, y.params, y.started, y.ended)
        assert tags(x.tags) == tags(y.tags)
        assert not ids or x.id == y.id
    same_points(a, b)


def same_points(a: Experiment, b: Experiment) -> None:
    assert list(a.points) == list(b.points)
    for metric, points in a.points.items():
        for column in ("runs", "steps", "values", "times"):
            np.testing.assert_array_equal(getattr(points, column), getattr(b.points[metric], column), err_msg=metric)


def refused(message: str, *args: object, **kwargs: object) -> str:
    with pytest.raises(AdvisorError, match=message) as caught:
        read_experiment(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def through_client(uri: str, filter: str | None = None, *, experiment: str = "odd") -> Experiment:
    store = ClientStore(StoreLocation("other", uri))
    return store.read(experiment, filter=filter, on_progress=lambda done, of: None)


def same_by_sql_and_through_the_client(uri: str, odd_database: Path) -> Experiment:
    """Assert that SQL and the client read from this database what `odd_database` holds; return what SQL reads."""
    by_sql = read_experiment("odd", tracking_uri=uri)
    same(by_sql, through_client(uri))
    same(by_sql, read_experiment("odd", tracking_uri=str(odd_database)), ids=False)
    filtered = read_experiment("odd", tracking_uri=uri, filter="params.lr = '1e-3'")
    assert [run.name for run in filtered.runs] == ["first"]
    assert list_experiments(uri) == list_experiments(str(odd_database))
    return by_sql


def trace(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files and folders in a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}
