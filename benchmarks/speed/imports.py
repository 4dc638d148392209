"""How long a training waits for our hook to be imported, and a person for the help: medians over new processes.

python benchmarks/speed/imports.py [--times 9]

What Python, torch and MLflow themselves take is measured in the same processes and told apart. Time of the processor says what
is ours; time by the clock is what is waited for where nothing else runs.
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
"""(imported first, timed, milliseconds that it may take)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9)
    times = parser.parse_args().times
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {times} processes each\n")
    print(f"{'what':52} {'wall ms':>8} {'cpu ms':>8} {'goal':>6}")
    for first, then, goal in CASES:
        told = [_time(first, then) for _ in range(times)]
        if first != "pass":
            _show(first, [t[:2] for t in told], None)
        _show(then, [t[2:] for t in told], goal)


def _time(first: str, then: str) -> list[float]:
    """Milliseconds by the clock and of the processor, of what comes first, then of what is timed."""
    code = _TIMED.format(first=first, then=then)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(word) for line in ended.stderr.splitlines()[-2:] for word in line.split()]


def _show(what: str, told: list[list[float]], goal: int | None) -> None:
    wall, cpu = (statistics.median(column) for column in zip(*told, strict=True))
    print(f"{what:52} {wall:8.0f} {cpu:8.0f} {goal or '':>6}", flush=True)


if __name__ == "__main__":
    main()
