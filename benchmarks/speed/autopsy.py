"""Measures the processor time that `autopsy=True` adds to a healthy training step.

    python benchmarks/speed/autopsy.py

Three loggers record copies of the same training in turns: with the autopsy, without it, and once more without it. The difference of
the latter two is the noise. Each block is compared with the block of the second logger before it.
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
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| training | step | added by the autopsy: median (middle half) | noise |\n|---|---|---|---|")
    for model in options.models.split(","):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with_it, without, again = (start(model, folder, on, stack) for on in (True, False, False))
            for block in (with_it, without, again):
                block(options.steps)
            gc.collect()
            added, noise, base = [], [], []
            for _ in range(options.pairs):
                base.append(without(options.steps))
                added.append(with_it(options.steps) - base[-1])
                base.append(without(options.steps))
                noise.append(again(options.steps) - base[-1])
            cells = [f"{m:+.1f} µs ({low:+.1f} to {high:+.1f})" for low, m, high in map(quartiles, (added, noise))]
            print(f"| {model} | {statistics.median(base):,.0f} µs | {' | '.join(cells)} |", flush=True)


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4)


if __name__ == "__main__":
    main()
