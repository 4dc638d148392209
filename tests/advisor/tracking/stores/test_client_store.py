"""Servers and folders of files give what SQL gives."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiments import refused, same, trace
from fault_servers import FaultyProxy

from advisor.tracking.stores import client
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import list_experiments, read_experiment


class _Portal(FaultyProxy):
    """A proxy that answers the call for many histories with a page of its own."""

    pages = 0

    def _forward(self, request, body):
        if "get-history-bulk" not in request.path:
            return super()._forward(request, body)
        self.pages += 1
        return 200, [("Content-Type", "text/html")], b"<html>Please sign in</html>"


@pytest.mark.xdist_group("tracking server")
def test_a_server_gives_the_same(odd_database: Path, serve: Callable[[Path], Any]) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    database, address = serve(odd_database)
    long = MlflowClient(database)
    id = long.create_experiment("long")
    for start in (0, 5000):
        run = long.create_run(id, start_time=start + 1).info.run_id
        for n in range(0, 3000 if start else 1500, 500):
            values = [Metric("loss", 0.5 * s, start + s, start + s) for s in range(n, n + 500)]
            long.log_batch(run, metrics=[*values, Metric("few", n, start + n, n)])
    by_sql = read_experiment("long", tracking_uri=database)
    assert len(by_sql.points["loss"].steps) == 4500  # more than a server's charts are given
    same(by_sql, read_experiment("long", tracking_uri=address))
    proxy = _Portal(int(address.rpartition(":")[2]))
    try:
        same(by_sql, read_experiment("long", tracking_uri=proxy.uri))
    finally:
        proxy.close()
    assert proxy.pages > 0
    long.delete_experiment(id)

    by_sql = read_experiment("odd", tracking_uri=database)
    same(by_sql, read_experiment("odd", tracking_uri=address))
    assert list_experiments(address) == list_experiments(database) == ("Default", "odd", "other study")
    assert "its experiments are: odd, Default, other study" in refused(
        "no experiment named 'Odds'", "Odds", tracking_uri=address
    )
    refused("was deleted", "gone", tracking_uri=address)
    refused("is no filter that MLflow understands", "odd", tracking_uri=address, filter="lr >")


def test_a_server_returns_many_histories_at_once(
    odd_database: Path, serve: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delattr(MlflowClient, "get_metric_history")  # one history at a time
    address = serve(odd_database).address
    reported: list[tuple[int, int]] = []
    read = read_experiment("odd", tracking_uri=address, on_progress=lambda *p: reported.append(p))
    same(read, read_experiment("odd", tracking_uri=str(odd_database)))
    assert reported == sorted(reported)
    assert reported[-1] == (4, 4)


def test_a_folder_of_files_gives_the_same(odd_database: Path, odd_files: Path) -> None:
    by_sql = read_experiment("odd", tracking_uri=str(odd_database))
    for uri in (str(odd_files), odd_files.as_uri()):
        same(by_sql, read_experiment("odd", tracking_uri=uri), ids=False)


def test_an_unreachable_server_is_soon_an_error_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_s, retries = (int(client.FIRST_REQUEST_SETTINGS[f"MLFLOW_HTTP_REQUEST_{name}"]) for name in ("TIMEOUT", "MAX_RETRIES"))
    assert wait_s * (1 + retries) < 12
    monkeypatch.setitem(client.FIRST_REQUEST_SETTINGS, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        port = silent.getsockname()[1]
        began = time.monotonic()
        message = refused("cannot reach", "x", tracking_uri=f"http://me:hunter2@127.0.0.1:{port}")
        assert time.monotonic() - began < wait_s * (1 + retries)
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("postgresql://me:hunter2@host/db", 'pip install "tuning-advisor[postgres]"'),
        ("postgresql+psycopg2://host/db", 'pip install "tuning-advisor[postgres]"'),
        ("mysql+pymysql://host/db", 'pip install "tuning-advisor[mysql]"'),
        ("mssql+pyodbc://me:hunter2@host/db", "install the database's Python driver"),
    ],
)
def test_a_missing_driver_is_an_error_with_the_extra_that_has_it(uri: str, hint: str) -> None:
    message = str(client.explain_error(ModuleNotFoundError("No module named 'x'"), parse_tracking_uri(uri)))
    assert message.startswith("cannot open ")
    assert message.endswith(f": No module named 'x'; {hint}")
    assert "hunter2" not in message


def test_reading_files_leaves_no_trace(odd_files: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(odd_files, tmp_path / "mlruns"))
    assert len(read_experiment("odd", tracking_uri=str(folder)).runs) == 4
    assert trace(folder) == trace(odd_files)
