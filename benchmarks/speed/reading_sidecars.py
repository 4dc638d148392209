"""Measures the time to read an experiment through a tracking server with sidecars, without them, and with MLflow's client.

    python benchmarks/speed/reading_sidecars.py [--runs 100] [--metrics 6] [--steps 500]

The hook's shipper delivers the runs to a real `mlflow server` on SQLite, which also serves their artifacts. Reading with and
without sidecars alternate three times, and the fastest time of each is shown. The client reads some of the runs once, and its time
is scaled. Up to 500 steps all ways read the same points; beyond that, the store holds windows of steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from mlflow import MlflowClient

sys.path.append(str(Path(__file__).resolve().parents[1] / "reliability"))
from fault_servers import TrackingServer
from reading import SAMPLE_RUNS, plain_loop

from advisor import contract
from advisor.tracking.points import cache
from advisor.tracking.stores.reading import read_experiment
from advisor_logging import spool
from advisor_logging.shipper import Shipper


def fill(uri: str, folder: Path, runs: int, metrics: int, steps: int) -> None:
    noise = np.random.default_rng(0)
    for i in range(runs):
        start = 1_600_000_000_000 + 1000 * i
        run = {"spool": f"{i:012x}", "experiment": "all", "run_id": None, "run_name": f"run {i}", "ends_run": True}
        mine = folder / str(i)
        mine.mkdir(parents=True)
        spool.write_json(mine / "run.json", {**run, "start_ms": start, "source_tags": {}, "cwd": "/"})
        writer = spool.SpoolWriter(mine)
        values = noise.normal(size=(steps, metrics)).tolist()
        for first in range(0, steps, 100):
            rows = [
                (s, start + s, {f"metric {m}": v for m, v in enumerate(values[s])}) for s in range(first, first + 100)
            ]
            writer.append(spool.encode_rows(spool.STEPS, rows[: steps - first]))
        writer.append(spool.encode_event({"end": {"status": "FINISHED", "time_ms": start + steps, "tags": {}}}))
        writer.close()
        assert Shipper(mine, uri, None).deliver(0.0)


def seconds(uri: str) -> tuple[float, int]:
    """Return the seconds to read the whole experiment, and the number of points."""
    begun = time.perf_counter()
    read = read_experiment("all", tracking_uri=uri)
    assert not read.warnings
    return time.perf_counter() - begun, sum(len(points.steps) for points in read.points.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--runs", 100), ("--metrics", 6), ("--steps", 500)):
        parser.add_argument(option, type=int, default=default)
    size = parser.parse_args()
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
    os.environ[cache.FOLDER_VARIABLE] = "off"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = TrackingServer(f"sqlite:///{folder / 'mlflow.db'}", folder)
        stack.callback(server.kill)
        server.start()
        begun = time.perf_counter()
        fill(server.uri, folder / "spool", size.runs, size.metrics, size.steps)
        print(f"{size.runs} runs x {size.metrics} metrics x {size.steps:,} steps, ", end="")
        print(f"delivered in {time.perf_counter() - begun:.1f} s\n\n{'':20}{'s':>8}{'points':>12}")
        client = MlflowClient(server.uri)
        (experiment,) = client.search_experiments(filter_string="name = 'all'")
        tags = {
            run.info.run_id: run.data.tags[contract.TAG_SIDECAR]
            for run in client.search_runs([experiment.experiment_id], max_results=size.runs)
        }
        fastest: dict[str, tuple[float, int]] = {}
        for _ in range(3):
            for way in ("with sidecars", "without"):
                for run_id, tag in tags.items():
                    if way == "without":
                        client.delete_tag(run_id, contract.TAG_SIDECAR)
                    else:
                        client.set_tag(run_id, contract.TAG_SIDECAR, tag)
                measured = seconds(server.uri)
                fastest[way] = min(fastest.get(way, measured), measured)
        sample = min(SAMPLE_RUNS, size.runs)
        begun = time.perf_counter()
        points = plain_loop(server.uri, sample)
        scaled = size.runs / sample
        fastest[f"client ({sample} runs)"] = ((time.perf_counter() - begun) * scaled, round(points * scaled))
        for way, (duration, points) in fastest.items():
            print(f"{way:20}{duration:>8.2f}{points:>12,}")


if __name__ == "__main__":
    main()
