"""Measures `advisor analyze` from a cold start to the report on disk: time, processor time, memory and size of the report.

    python benchmarks/speed/end_to_end.py                         100, 1,000 and 10,000 runs x 6 metrics x 500 points
    python benchmarks/speed/end_to_end.py --runs 1000 --keep DIR  keep the stores, and use those that exist
    python benchmarks/speed/end_to_end.py --server                through a tracking server on the store

The runs are those of `engine.py`. Each analysis is a separate process: the first with an empty cache, the second with the first
one's cache, the third after ten further runs. The store may already be in the page cache at a cold start. Writing 10,000 runs takes
minutes and about 8 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from engine import _TAGS, SIX, STEPS, _curves, _trial_params
from reading import server

from advisor import contract
from advisor.tracking.stores.client import quiet_mlflow

RUNS = (100, 1000, 10_000)
POINTS = 500
NEW_RUNS = 10
"""Number of runs that are added before the last analysis."""


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_mib: float
    report_kb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="*", default=RUNS)
    parser.add_argument("--keep", type=Path, help="folder to keep the stores in")
    parser.add_argument("--server", action="store_true", help="read through a tracking server")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs\n")
    print(f"{'runs':>7} {'analysis':22} {'wall s':>7} {'cpu s':>7} {'peak MiB':>9} {'report kB':>10}")
    for runs in options.runs:
        with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
            _size(Path(folder), runs, served=options.server)


def _size(folder: Path, runs: int, *, served: bool) -> None:
    """Print the rows of the table for one size of the store, in runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / f"{runs}.db"
    if not path.exists():
        _write_in_other_process(path, 0, runs)
    uri = f"sqlite:///{path}"
    with tempfile.TemporaryDirectory() as cache, server(uri) if served else nullcontext(uri) as address:
        _show(runs, "cold", analyze(address, Path(cache)))
        _show(runs, "again", analyze(address, Path(cache)))
        with sqlite3.connect(path) as connection:
            (present,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        _write_in_other_process(path, present, NEW_RUNS)
        _show(runs, f"{NEW_RUNS} runs more", analyze(address, Path(cache)))


def _write_in_other_process(path: Path, first: int, runs: int) -> None:
    """Call `write` in a separate process: on Linux, a child's peak memory starts at the peak of its parent."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(write, path, first, runs).result()


def _show(runs: int, analysis: str, cost: Cost) -> None:
    print(
        f"{runs:7,} {analysis:22} {cost.wall_s:7.1f} {cost.cpu_s:7.1f} {cost.peak_mib:9,.0f} {cost.report_kb:10,.0f}",
        flush=True,
    )


def analyze(uri: str, cache: Path) -> Cost:
    """Run `advisor analyze` in a separate process, and return its measured cost."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-c",
            "from advisor.cli import main; main()",
            "analyze",
            "study",
            "--tracking-uri",
            uri,
            "--out",
            f"{out}/r",
            "-q",
        ]
        began = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "ADVISOR_CACHE": str(cache)})
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
        size = Path(out, "r", "report.html").stat().st_size
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Cost(seconds, used.ru_utime + used.ru_stime, peak, size / 1000)


# --- the store ------------------------------------------------------------------------------------------------------------------


def write(path: Path, first: int, runs: int, name: str = "study") -> None:
    """Add runs, numbered from `first`, to the experiment by writing directly to MLflow's tables."""
    experiment = _experiment(f"sqlite:///{path}", name)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        for number in range(first, first + runs):
            _write_run(connection, experiment, number)


def _experiment(uri: str, name: str) -> int:
    with quiet_mlflow():
        from mlflow import MlflowClient

        client = MlflowClient(uri)  # this call creates the tables
        known = client.get_experiment_by_name(name)
        return int(known.experiment_id if known else client.create_experiment(name))


def _write_run(connection: sqlite3.Connection, experiment: int, number: int) -> None:
    random = np.random.default_rng(number)
    id = f"{random.integers(2**63):032x}"
    start = 1_600_000_000_000 + 60_000 * number
    chosen = _trial_params(random)
    fate = str(random.choice(["complete", "infeasible", "stopped"], p=[0.94, 0.03, 0.03]))
    steps = np.linspace(STEPS / POINTS, STEPS, POINTS).astype(np.int64)
    curves, status = _curves(chosen, steps, fate, random)
    tags = {**_TAGS, contract.TAG_STATUS: status, contract.TAG_SEED: str(number), contract.TAG_STUDY: "study"}
    tags[contract.TAG_OPTIMIZER] = str(chosen["optimizer"])
    connection.execute(
        "INSERT INTO runs (run_uuid, name, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id, "
        "source_type, source_name, entry_point_name, user_id, source_version) "
        "VALUES (?, ?, 'FINISHED', ?, ?, 'active', ?, ?, 'UNKNOWN', '', '', '', '')",
        (id, f"trial {number}", start, start + 50 * STEPS, f"/nowhere/{id}", experiment),
    )
    for table, texts in (("params", {k: str(v) for k, v in chosen.items()}), ("tags", tags)):
        rows = [(id, key, value) for key, value in texts.items()]
        connection.executemany(f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", rows)
    insert = "INSERT INTO {} (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
    for metric in SIX:
        nan = np.isnan(curves[metric])
        values, at = np.where(nan, 0.0, curves[metric]).tolist(), steps[: len(nan)].tolist()
        points = [(metric, v, start + 50 * s, id, s, is_nan) for v, s, is_nan in zip(values, at, nan.tolist(), strict=True)]
        connection.executemany(insert.format("metrics"), points)
        connection.execute(insert.format("latest_metrics"), points[-1])


if __name__ == "__main__":
    main()
