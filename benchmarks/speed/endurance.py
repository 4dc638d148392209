"""Logs a million steps through the hook, the spool and the shipper into SQLite, and measures time, memory and disk.

    python benchmarks/speed/endurance.py [--steps 1000000]

The training is a single parameter, so steps come faster than in any real training. Memory is the resident memory of the training
process, including PyTorch, and of the shipper process. The rows of the store are compared with the bound in the docstring of
`advisor.contract.window_width`.
"""

from __future__ import annotations

import argparse
import math
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import torch

from advisor import contract
from advisor_pytorch import TuningLogger

REPORTS = 10
METRICS = 4
"""Loss, gradient norm, learning rate and step time."""


def resident_mb(process: int | None) -> float:
    """Return the resident memory of a process, MB; NaN if it has exited."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return math.nan
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), math.nan)


def size_mb(folder: Path) -> float:
    """Return the size of the files in a folder, MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def stated_windows(steps: int) -> float:
    """Return the number of windows that `contract.window_width` promises."""
    dense = contract.DENSE_STEPS
    return steps if steps <= dense else dense * (1 + math.log2(steps / dense) / 2)


def train(steps: int, folder: Path) -> int:
    """Log the steps, print the progress, and return the number of rows in the store."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    spool, store = folder / "spool", folder / "mlflow.db"
    loss = torch.ones(())
    print(f"{'steps':>10}{'s':>8}{'µs a step':>11}{'trainer MB':>12}{'shipper MB':>12}{'spool MB':>10}")
    with TuningLogger(
        model,
        optimizer,
        params={"learning_rate": 1e-6},
        objective="val/loss",
        experiment="endurance",
        tracking_uri=f"sqlite:///{store}",
        spool=spool,
        close_timeout_s=600.0,
    ) as log:
        assert log._recorder is not None
        begun = since = time.perf_counter()
        for step in range(1, steps + 1):
            optimizer.step()
            log.step(loss)
            if step % (steps // REPORTS) == 0:
                now = time.perf_counter()
                shipper = log._recorder._shipper
                shipping = resident_mb(None if shipper is None else shipper._process.pid)
                print(
                    f"{step:>10,}{now - begun:>8.1f}{(now - since) / (steps // REPORTS) * 1e6:>11.1f}"
                    f"{resident_mb(os.getpid()):>12.1f}{shipping:>12.1f}{size_mb(spool):>10.1f}",
                    flush=True,
                )
                since = now
        log.evaluate({"val/loss": 1.0})
        ended = time.perf_counter()
    print(f"{time.perf_counter() - ended:.1f} s more until the store was complete")
    with sqlite3.connect(store) as database:
        rows = database.execute("SELECT key, count(*) FROM metrics GROUP BY key").fetchall()
    counts = dict(rows)
    windows = counts[contract.TRAIN_LOSS]
    total = sum(counts.values())
    print(f"windows of each metric: {windows:,}; stated: about {stated_windows(steps):,.0f}")
    print(f"rows of {len(counts)} keys in the store: {total:,}; the store takes {store.stat().st_size / 1e6:.1f} MB")
    for key, count in sorted(counts.items()):
        print(f"  {key:<28}{count:>8,}")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure time, memory and disk of a long training's log.")
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        train(args.steps, Path(folder))


if __name__ == "__main__":
    main()
