"""Measures the import time of our hook and the time of `advisor --help`: medians over new processes.

    python benchmarks/speed/imports.py [--times 9]

The imports of torch and MLflow are timed separately in the same processes. Processor time is hardly affected by other load; wall
time is the delay that a user sees on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys

_TIMED = """
import os, sys, time
before = time.perf_counter(), time.process_time()
{first}
between = time.perf_counter(), time.process_time()
sys.stdout = open(os.devnull, "w")
try:
    {then}
except SystemExit:
    pass
after = time.perf_counter(), time.process_time()
print(*(1000 * (b - a) for a, b in ((before[i], between[i]) for i in (0, 1))), file=sys.stderr)
print(*(1000 * (b - a) for a, b in ((between[i], after[i]) for i in (0, 1))), file=sys.stderr)
"""
CASES = (
    ("import torch, mlflow", "import advisor_pytorch", 150),
    ("pass", "from advisor.cli import main; main(['--help'])", 300),
    ("pass", "import advisor.contract", None),
    ("pass", "from advisor import analyze", None),
)
"""(statement before, timed statement, maximum milliseconds)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9)
    times = parser.parse_args().times
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {times} processes each\n")
    print(f"{'what':52} {'wall ms':>8} {'cpu ms':>8} {'goal':>6}")
    for first, then, goal in CASES:
        rows = [_time_statements(first, then) for _ in range(times)]
        if first != "pass":
            _show(first, [row[:2] for row in rows], None)
        _show(then, [row[2:] for row in rows], goal)


def _time_statements(first: str, timed_statement: str) -> list[float]:
    """Return wall and processor milliseconds of the first statement, then of the timed one."""
    code = _TIMED.format(first=first, then=timed_statement)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(word) for line in ended.stderr.splitlines()[-2:] for word in line.split()]


def _show(what: str, rows: list[list[float]], goal: int | None) -> None:
    wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{what:52} {wall:8.0f} {cpu:8.0f} {goal or '':>6}", flush=True)


if __name__ == "__main__":
    main()
