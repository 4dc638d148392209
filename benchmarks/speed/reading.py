"""Measures the time to read one experiment with our SQL, through a tracking server, and with a plain loop over MLflow's client.

    python benchmarks/speed/reading.py [--runs 1000] [--metrics 6] [--points 500]

The slow ways are measured on a few runs and scaled to all runs. This favours the plain loop on SQLite, whose cost grows faster than
the number of runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "reliability"))
from fault_servers import MariaDB, Postgres, TrackingServer

from advisor.interop.importers.importing import open_writer
from advisor.interop.importers.mlflow_runs import NewRun
from advisor.interop.importers.runs import MetricPoints
from advisor.tracking.points import cache
from advisor.tracking.stores.client import quiet_mlflow
from advisor.tracking.stores.reading import read_experiment

SAMPLE_RUNS = 20
"""Number of runs on which the two slow ways of reading are measured."""
TABLES = ("experiments", "runs", "params", "tags", "metrics", "latest_metrics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--runs", 1000), ("--metrics", 6), ("--points", 500)):
        parser.add_argument(option, type=int, default=default)
    size = parser.parse_args()
    os.environ[cache.CACHE_FOLDER_VARIABLE] = "off"
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        seconds, _ = seconds_of(lambda: write_curves(uri, size.runs, size.metrics, size.points))
        rows = size.runs * size.metrics * size.points
        print(f"{size.runs:,} runs x {size.metrics} metrics x {size.points} points = {rows:,} rows", end="")
        print(f" (written in {seconds:.1f} s); Python {platform.python_version()}, {os.cpu_count()} CPUs\n")
        print(f"{'way':42} {'s':>9} {'times SQL':>10}")
        base, ours = seconds_of(lambda: read_experiment("all", tracking_uri=uri))
        assert sum(len(p.steps) for p in ours.points.values()) == rows
        show("advisor, SQLite by SQL", base, base)
        compare_with_select(uri)
        sample = min(SAMPLE_RUNS, size.runs)
        seconds, _ = seconds_of(lambda: plain_loop(uri, sample))
        show(f"MLflow's client, SQLite ({sample} runs, scaled)", seconds * size.runs / sample, base)
        databases(folder, size.runs, rows, base)
        if importlib.util.find_spec("flask") is None:
            print("tracking server: not measured, it needs: pip install mlflow")
        else:
            with server(uri) as address:
                one_of = max(1, size.runs // SAMPLE_RUNS)
                names = "tags.part = '0'"
                seconds, read = seconds_of(lambda: read_experiment("all", tracking_uri=address, filter=names))
                show(f"advisor, server ({len(read.runs)} runs, scaled)", seconds * size.runs / len(read.runs), base)
                seconds, _ = seconds_of(lambda: plain_loop(address, sample))
                show(f"MLflow's client, server ({sample} runs, scaled)", seconds * size.runs / sample, base)
                assert len(read.runs) == -(-size.runs // one_of)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        print(f"\npeak memory of this process, writing included: {peak:,.0f} MiB")


def databases(folder: str, runs: int, rows: int, base: float) -> None:
    """Print the table's rows for database servers, to which the SQLite store in the folder is copied."""
    sample = min(SAMPLE_RUNS, runs)
    for name, missing, served in SERVERS:
        if reason := missing():
            print(f"{name}: not measured, it needs {reason}")
            continue
        with served(f"{folder}/mlflow.db") as database:
            seconds, ours = seconds_of(partial(read_experiment, "all", tracking_uri=database))
            assert sum(len(p.steps) for p in ours.points.values()) == rows
            show(f"advisor, {name} by SQL", seconds, base)
            slow, _ = seconds_of(partial(plain_loop, database, sample))
            show(f"MLflow's client, {name} ({sample} runs, scaled)", slow * runs / sample, base)
            print(f"{'':42} {slow * runs / sample / seconds:.0f} times ours")
            if name == "PostgreSQL":
                times, ratio = compare_with_copy(database)
                print(f"{'':42} ours {times[0]:.2f} s, the server's own bare COPY {times[1]:.2f} s, {ratio:.2f} times")


def show(way: str, seconds: float, base: float) -> None:
    print(f"{way:42} {seconds:9.1f} {seconds / base:10.1f}")


def seconds_of(what: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = what()
    return time.perf_counter() - start, result


SELECT = "SELECT run_uuid, key, step, value, timestamp FROM metrics"


def rows_of(path: str) -> None:
    """Read all points into NumPy arrays with a bare SELECT statement."""
    dtype = [("run", "S32"), ("metric", "S64"), ("step", "i8"), ("value", "f8"), ("time", "i8")]
    with closing(sqlite3.connect(path)) as connection:
        np.fromiter(connection.execute(SELECT), dtype=dtype)


def compare_with_select(uri: str) -> None:
    """Print the processor times of our reading and of a bare SELECT, each the median of three measurements."""
    rows = []
    for _ in range(3):
        began = processor_s()
        read_experiment("all", tracking_uri=uri)
        read = processor_s()
        rows_of(uri.removeprefix("sqlite:///"))
        rows.append((read - began, processor_s() - read))
    ours, bare = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(a / b for a, b in rows)
    print(f"{'':42} processor: {ours:.2f} s, bare SELECT {bare:.2f} s, {ratio:.2f} times")


def processor_s() -> float:
    """Return the processor time, in seconds, of this process and of its finished children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def compare_with_copy(uri: str) -> tuple[tuple[float, float], float]:
    """Return ((seconds of our reading, seconds of a server-side COPY to /dev/null), their ratio), as medians of three
    measurements."""
    import psycopg

    rows = []
    with psycopg.connect(uri.replace("+psycopg2", "")) as connection:
        copy = "COPY (SELECT run_uuid, key, step, value, timestamp FROM metrics) TO '/dev/null' (FORMAT BINARY)"
        for _ in range(3):
            ours, _ = seconds_of(lambda: read_experiment("all", tracking_uri=uri))
            rows.append((ours, seconds_of(lambda: connection.execute(copy))[0]))
    ours, bare = (statistics.median(column) for column in zip(*rows, strict=True))
    return (ours, bare), statistics.median(a / b for a, b in rows)


def write_curves(uri: str, runs: int, metrics: int, points: int) -> None:
    """Write noisy curves to the store; every call writes the same curves."""
    noise = np.random.default_rng(0)
    steps = np.arange(points, dtype=np.int64)
    one_of = max(1, runs // SAMPLE_RUNS)

    def new_runs() -> Iterator[NewRun]:
        for i in range(runs):
            start = 1_600_000_000_000 + 1000 * i
            yield NewRun(
                source=("benchmark", str(i)),
                name=f"run {i}",
                status="FINISHED",
                started_ms=start,
                ended_ms=start + points,
                params={"lr": repr(10 ** noise.uniform(-4, 0)), "layers": str(noise.integers(1, 9))},
                tags={"part": str(i % one_of)},
                points={f"metric {m}": MetricPoints(steps, noise.normal(size=points), start + steps) for m in range(metrics)},
            )

    with open_writer(uri) as writer:
        writer.write("all", {}, new_runs(), lambda _run, _points: None)


def plain_loop(uri: str, runs: int) -> int:
    """Read every metric history of every run, one at a time, as users' scripts do; return the number of points."""
    with quiet_mlflow():
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("all")
        assert experiment is not None
        listed = client.search_runs([experiment.experiment_id], max_results=runs)
        return sum(len(client.get_metric_history(r.info.run_id, key)) for r in listed for key in r.data.metrics)


@contextmanager
def database_with_copy(
    database: Postgres | MariaDB, fill: Callable[[sqlite3.Connection, str], None], path: str
) -> Iterator[str]:
    """Copy the SQLite file at `path` to a new database server, and yield the tracking URI of the server."""
    try:
        with quiet_mlflow():
            from mlflow import MlflowClient

            MlflowClient(database.uri)  # this call creates the tables
        with closing(sqlite3.connect(path)) as old:
            fill(old, database.uri)
        yield database.uri
    finally:
        database.remove()


def fill_postgresql(sqlite_store: sqlite3.Connection, uri: str) -> None:
    import psycopg

    with psycopg.connect(uri.replace("+psycopg2", "")) as new:
        new.execute("DELETE FROM experiments")
        for table in TABLES:
            rows = sqlite_store.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            flags = [i for i, name in enumerate(names) if name == "is_nan"]
            with new.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row([bool(v) if i in flags else v for i, v in enumerate(row)])
        new.commit()
        new.autocommit = True
        new.execute("ANALYZE")


def fill_mariadb(sqlite_store: sqlite3.Connection, uri: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    with engine.begin() as new:
        new.exec_driver_sql("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")  # MLflow's first experiment has the id 0
        new.exec_driver_sql("DELETE FROM experiments")
        for table in TABLES:
            rows = sqlite_store.execute(f"SELECT * FROM {table}")
            names = ", ".join(f"`{column[0]}`" for column in rows.description)
            places = ", ".join(["%s"] * len(rows.description))
            while batch := rows.fetchmany(20_000):
                new.exec_driver_sql(f"INSERT INTO {table} ({names}) VALUES ({places})", batch)
    with engine.connect() as new:
        new.exec_driver_sql(f"ANALYZE TABLE {', '.join(TABLES)}").close()


def missing_software(server: object, programs: str, driver: str, extra: str) -> str:
    """Return the name of the software that is missing to measure a database server; empty if everything is installed."""
    installed = server is not None and importlib.util.find_spec(driver) is not None
    return "" if installed else f"{programs} and: pip install 'tuning-advisor[{extra}]'"


SERVERS: tuple[tuple[str, Callable[[], str], Callable[[str], AbstractContextManager[str]]], ...] = (
    (
        "PostgreSQL",
        lambda: missing_software(Postgres.binaries(), "initdb", "psycopg", "postgres"),
        lambda path: database_with_copy(Postgres(), fill_postgresql, path),
    ),
    (
        "MariaDB",
        lambda: missing_software(MariaDB.server(), "mariadbd", "pymysql", "mysql"),
        lambda path: database_with_copy(MariaDB(), fill_mariadb, path),
    ),
)


@contextmanager
def server(uri: str) -> Iterator[str]:
    """Start a tracking server on the store with four processes, MLflow's default, and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        started = TrackingServer(uri, Path(folder), workers=None)
        try:
            started.start()
            yield started.uri
        finally:
            started.kill()


if __name__ == "__main__":
    main()
