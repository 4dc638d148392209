"""Measures `advisor survey` in local processes and on a Ray cluster, and compares the files.

    python benchmarks/speed/many_experiments.py        60 experiments of 12 runs x 6 metrics x 500 points, 2 at a time
    python benchmarks/speed/many_experiments.py --experiments 300 --jobs 8 --rounds 3

The runs are those of `engine.py`. Each analysis is a separate process without a cache. The cluster runs on this machine, has one
processor per job and is started before the measurement. Both ways alternate, so that other load affects them equally.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from end_to_end import write

RUNS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {options.experiments} experiments\n")
    with tempfile.TemporaryDirectory() as name, _cluster(options.jobs) as address:
        folder = Path(name)
        for number in range(options.experiments):
            write(folder / "many.db", RUNS * number, RUNS, f"study {number}")
        ways = {"processes": (), "ray": ("--on", "ray", "--ray-address", address)}
        durations = {way: [0.0] * options.rounds for way in ways}
        for turn in range(options.rounds):
            for way, more in ways.items():
                durations[way][turn] = _analyze(folder, folder / way, options.jobs, more)
        same = _file_contents(folder / "processes") == _file_contents(folder / "ray")
    print(f"{'':10} {'median s':>9} {'min s':>8} {'max s':>8}")
    for way, seconds in durations.items():
        print(f"{way:10} {median(seconds):9.1f} {min(seconds):8.1f} {max(seconds):8.1f}")
    print(f"\nThe files are {'the same' if same else 'NOT the same'}; the load is {os.getloadavg()[0]:.0f}.")


@contextmanager
def _cluster(processors: int) -> Iterator[str]:
    """Start a cluster on this machine and yield its address."""
    from ray import cluster_utils

    cluster: Any = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": processors, "include_dashboard": False}
    )
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def _analyze(folder: Path, out: Path, jobs: int, extra_arguments: Sequence[str]) -> float:
    """Return the seconds of the command."""
    store = f"sqlite:///{folder / 'many.db'}"
    words = [
        "survey",
        "study *",
        "--tracking-uri",
        store,
        "--out",
        str(out),
        "--jobs",
        str(jobs),
        "-q",
        *extra_arguments,
    ]
    began = time.perf_counter()
    command = [sys.executable, "-c", "from advisor.cli import main; main()", *words]
    subprocess.run(command, check=True, env={**os.environ, "ADVISOR_CACHE": "off"})
    return time.perf_counter() - began


def _file_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
