from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import socket
import socketserver
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
START = 1_600_000_000_000
_NUMBERS = count()


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[[str], str]]:
    """Start a real tracking server on a database and return its address."""
    if importlib.util.find_spec("flask") is None:
        pytest.skip("needs a tracking server: pip install mlflow")
    running = []

    def start(database_uri: str) -> str:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database_uri]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--default-artifact-root", tempfile.gettempdir()]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment))
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            try:
                urllib.request.urlopen(address + "/health", timeout=1).read()
                return address
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the tracking server did not start within two minutes")

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(120)


class Served(NamedTuple):
    """A database, and the address of the tracking server in front of it."""

    database: str
    address: str


@pytest.fixture(scope="session")
def tracking_server(start_server: Callable[[str], str], empty_store: Path, tmp_path_factory: Any) -> Served:
    database = f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('server') / 'mlflow.db')}"
    return Served(database, start_server(database))


@pytest.fixture
def serve(tracking_server: Served) -> Callable[[str | Path], Served]:
    """Put a copy of a database behind the tracking server that all tests share, because starting one takes many seconds."""

    def put(database: str | Path) -> Served:
        paths = [str(uri).removeprefix("sqlite:///") for uri in (database, tracking_server.database)]
        with closing(sqlite3.connect(paths[0])) as given, closing(sqlite3.connect(paths[1])) as behind:
            given.backup(behind)  # a transaction, so that the server notices the change
        return tracking_server

    return put


def fill(tracking_uri: str) -> None:
    """Log an experiment with everything that people log, right and wrong."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(tracking_uri)
    id = client.create_experiment("odd", tags={"advisor.objective": "val/loss", "note": "x" * 6000})
    client.create_experiment("other study")
    client.delete_experiment(client.create_experiment("gone"))
    parent = client.create_run(id, start_time=START, run_name="sweep").info.run_id
    client.set_terminated(parent, "FINISHED", START + 5)

    values = [1.5, math.nan, math.inf, -math.inf, 0.1 + 0.2, 5e-324, -0.25]
    first = client.create_run(id, start_time=START + 1000, run_name="first", tags={"mlflow.parentRunId": parent})
    first_id = first.info.run_id
    curve = [Metric("val/loss", v, START + 1000 + 10 * i, 2 * i) for i, v in enumerate(values)]
    client.log_batch(
        first_id,
        metrics=curve,
        params=[Param("lr", "1e-3"), Param("name", "ünï code"), Param("empty", "")],
        tags=[RunTag("advisor.status", "complete"), RunTag("mlflow.note.content", "a note"), RunTag("team", "vision")],
    )
    client.set_terminated(first_id, "FINISHED", START + 9000)

    # Resumed: step 4 again, then back to step 1; logged out of order, two points in one millisecond, one without a time.
    resumed = client.create_run(id, start_time=START + 2000, run_name="resumed").info.run_id
    points = [(4, 0.5, 50), (4, 0.4, 90), (1, 0.9, 95), (7, 0.3, 95), (2, 0.8, 20)]
    client.log_batch(resumed, metrics=[Metric("val/loss", v, START + 2000 + t, s) for s, v, t in points])
    client.log_batch(resumed, metrics=[Metric("untimed", 3.0, 0, 0), Metric("untimed", 2.0, 1, 5)])
    client.log_batch(resumed, metrics=[Metric("system/cpu", 50.0, START, 0)], params=[Param("lr", "0.1")])

    doomed = client.create_run(id, start_time=START + 3000, run_name="doomed").info.run_id
    client.log_batch(doomed, metrics=[Metric("val/loss", 9.0, START, 0)])
    client.delete_run(doomed)

    tagged = client.create_run(id, start_time=START + 4000, run_name="tagged").info.run_id
    for start in range(0, 400, 100):
        client.log_batch(tagged, tags=[RunTag(f"tag{i:03}", "y" * 5500) for i in range(start, start + 100)])
    client.log_batch(tagged, tags=[RunTag("advisor.seed", "7"), RunTag("mlflow.log-model.history", "long")])
    client.set_terminated(tagged, "KILLED", START + 5000)


@pytest.fixture(scope="session")
def odd_database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    path = Path(shutil.copy(empty_store, tmp_path_factory.mktemp("odd") / "mlflow.db"))
    fill(f"sqlite:///{path}")
    return path


def new_database(uri: str) -> str:
    """Create an empty database on the server of this one, because starting a server takes seconds. Return its tracking URI."""
    name = f"store{next(_NUMBERS)}"
    engine = sqlalchemy.create_engine(uri, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{uri.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Tracking URI of an empty database on a PostgreSQL server of our own."""
    from fault_servers import Postgres

    if Postgres.binaries() is None or importlib.util.find_spec("psycopg2") is None:
        pytest.skip("needs PostgreSQL: initdb is not there, or psycopg2 is not installed")
    server = Postgres()
    try:
        yield server.uri
    finally:
        server.remove()


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    return new_database(postgres)


@pytest.fixture(scope="session")
def odd_postgres(postgres: str) -> str:
    """The content of `odd_database` in PostgreSQL."""
    fill(postgres)
    return postgres


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """Tracking URI of an empty database on a MariaDB server of our own."""
    from fault_servers import MariaDB

    if MariaDB.server() is None or importlib.util.find_spec("pymysql") is None:
        pytest.skip("needs MariaDB: mariadbd is not there, or pymysql is not installed")
    server = MariaDB()
    try:
        yield server.uri
    finally:
        server.remove()


@pytest.fixture
def empty_mariadb(mariadb: str) -> str:
    return new_database(mariadb)


@pytest.fixture(scope="session")
def odd_mariadb(mariadb: str) -> str:
    """The content of `odd_database` in MariaDB."""
    fill(mariadb)
    return mariadb


@pytest.fixture(scope="session")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "mlruns"
    fill(path.as_uri())
    return path


# --- trainings that log without importing MLflow --------------------------------------------------------------------------------

LOG = '''
import json, os, socket

def log(value=None, step=0, end=None):
    """Log a value of the objective into this training's run, or end it, through a process that has MLflow imported."""
    with socket.create_connection(("127.0.0.1", int(os.environ["LOGS_FOR_ME"]))) as line, line.makefile("rw") as file:
        file.write(json.dumps([os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_RUN_ID"], value, step, end]) + "\\n")
        file.flush()
        file.readline()
'''


@pytest.fixture
def project(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a store in it and with an unusual name."""
    own = tmp_path / "my prøject"
    own.mkdir()
    shutil.copy(empty_store, own / "mlflow.db")
    monkeypatch.chdir(own)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return own


@pytest.fixture
def logs(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log for trainings that import `log` from `quick`, so that each of them need not import MLflow, which takes seconds."""
    from mlflow.tracking import MlflowClient

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            uri, run_id, value, step, end = json.loads(self.rfile.readline())
            client = MlflowClient(uri)
            if value is not None:
                client.log_metric(run_id, "val/loss", value, step=step)
            if end is not None:
                client.set_terminated(run_id, end)
            self.wfile.write(b"done\n")

    (project / "quick.py").write_text(LOG)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        monkeypatch.setenv("LOGS_FOR_ME", str(server.server_address[1]))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield
        server.shutdown()
