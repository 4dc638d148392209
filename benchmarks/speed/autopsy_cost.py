"""Measures the processor time (on a GPU, the elapsed time) that `autopsy=True` adds to a healthy training step.

    python benchmarks/speed/autopsy_cost.py
    python benchmarks/speed/autopsy_cost.py --device cuda --models tiny,10M,gpt2

A single logger records a single training, in short blocks of three alternating kinds: with the autopsy, without it, and again
without it. The time of a kind of block is the mean of its fastest tenth, which other load on the machine disturbs least. The
difference between the two kinds of blocks without the autopsy is the noise of the measurement.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from models import MODELS, Training
from overhead import wait

from advisor_pytorch import TuningLogger
from advisor_pytorch.autopsy.watch import Autopsy
from advisor_pytorch.steps.patches import backward_patches


def start(training: Training, folder: Path) -> TuningLogger:
    return TuningLogger(
        training.model,
        training.optimizer,
        params={},
        objective="val/loss",
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        spool=folder,
        close_timeout_s=300.0,
    )


def block(log: TuningLogger, training: Training, steps: int, watch: Autopsy | None) -> float:
    """Train a block of steps with or without the autopsy; return the microseconds per step."""
    log._autopsy = log._capture._watch = watch
    if watch is not None:
        backward_patches.add_listener(watch._listener)
    batches = iter(log.batches(itertools.repeat(torch.zeros(64, 1))))
    wait(training.device)
    clock = time.perf_counter if training.device.type == "cuda" else time.process_time
    begun = clock()
    for _ in range(steps):
        next(batches)
        log.step(training.step())
    wait(training.device)
    seconds = clock() - begun
    if watch is not None:
        backward_patches.remove_listener(watch._listener)
    return seconds / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of the autopsy per healthy step.")
    parser.add_argument("--models", default=",".join(list(MODELS)[:2]))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| training | step | added by the autopsy | noise |\n|---|---|---|---|")
    for model in options.models.split(","):
        training = MODELS[model](torch.device(options.device))
        with tempfile.TemporaryDirectory() as folder, start(training, Path(folder)) as log:
            watch = log._autopsy
            assert watch is not None
            backward_patches.remove_listener(watch._listener)
            gc.collect()
            times: list[list[float]] = [[], [], []]
            for i in range(options.rounds):
                for k in (0, 1, 2) if i % 2 else (2, 1, 0):
                    times[k].append(block(log, training, options.steps, None if k else watch))
            log._autopsy = watch
            added, base, noise = (statistics.mean(sorted(t)[: max(len(t) // 10, 1)]) for t in times)
            print(f"| {model} | {base:,.0f} µs | {added - base:+.1f} µs | {noise - base:+.1f} µs |", flush=True)


if __name__ == "__main__":
    main()
