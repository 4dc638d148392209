"""Measures the processor time that `autopsy=True` adds to a healthy training step.

    python benchmarks/speed/autopsy.py

Three loggers record copies of the same training in turns, in short blocks: with the autopsy, without it, and once more without it.
The time of a logger is the mean of its fastest tenth of blocks, which other load on the machine disturbs least. The difference of
the two loggers without the autopsy is the noise.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from models import MODELS

from advisor_pytorch import TuningLogger
from advisor_pytorch.steps.backward import patches


def start(model: str, folder: Path, autopsy: bool, stack: ExitStack) -> Callable[[int], float]:
    """Return a function that trains a block of steps and returns microseconds of processor time a step."""
    torch.manual_seed(0)
    training = MODELS[model](torch.device("cpu"))
    log = stack.enter_context(
        TuningLogger(
            training.model,
            training.optimizer,
            params={},
            objective="val/loss",
            tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
            spool=folder,
            close_timeout_s=300.0,
            autopsy=autopsy,
        )
    )
    batches = iter(log.batches(itertools.repeat(torch.zeros(64, 1))))
    watch = log._autopsy

    def block(steps: int) -> float:
        if watch is not None:
            patches.listen(watch._listener)
        begun = time.process_time()
        for _ in range(steps):
            next(batches)
            log.step(training.step())
        seconds = time.process_time() - begun
        if watch is not None:
            patches.ignore(watch._listener)
        return seconds / steps * 1e6

    if watch is not None:
        patches.ignore(watch._listener)
    return block


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of the autopsy per healthy step.")
    parser.add_argument("--models", default=",".join(list(MODELS)[:2]))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| training | step | added by the autopsy | noise |\n|---|---|---|---|")
    for model in options.models.split(","):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with_it, without, again = (start(model, folder, on, stack) for on in (True, False, False))
            for block in (with_it, without, again):
                block(options.steps)
            gc.collect()
            times: list[list[float]] = [[], [], []]
            for i in range(options.rounds):
                for k in (0, 1, 2) if i % 2 else (2, 1, 0):
                    times[k].append((with_it, without, again)[k](options.steps))
            added, base, noise = (statistics.mean(sorted(t)[: max(len(t) // 10, 1)]) for t in times)
            print(f"| {model} | {base:,.0f} µs | {added - base:+.1f} µs | {noise - base:+.1f} µs |", flush=True)


if __name__ == "__main__":
    main()
