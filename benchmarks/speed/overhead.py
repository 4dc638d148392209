"""Measures the host time that our hook and other loggers add to a training step.

    python benchmarks/speed/overhead.py --threads 1
    python benchmarks/speed/overhead.py --device cuda
    python benchmarks/speed/overhead.py --models gpt2,resnet50
    python benchmarks/speed/overhead.py --threads 1 --cpu-time  # on a shared machine

All loggers train the same model with the same optimizer in the same loop. The loggers take turns with short blocks of bare and
logged steps, so that other load on the machine affects all loggers alike. Each block of logged steps is compared with the block of
bare steps before it; the table shows the median and the middle half of the differences. A logger's background work counts if it
happens during the logger's block of steps. Background work that remains at the end of a block is awaited but not timed. Not timing
it favours loggers with much background work, but the blocks are long enough for our writer thread to keep up. A CUDA device is
synchronised only at the end of a block.

Our hook logs all its metrics: loss, gradient norm, learning rate, step time, data wait, compute time and examples per second. The
cost of our hook is also shown without the gradient norm, the only part whose cost grows with the model. The other loggers log three
metrics at every step. All stores are SQLite databases. On a GPU, the script also makes a complete run in which any synchronisation
with the device is an error.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from loggers import Contestant, contestants
from models import MODELS, Training

from advisor_pytorch import TuningLogger

Clock = Callable[[], float]

HEAD = f"{'':<34}{'bare step':>12}{'added':>13}{'share':>10}    middle half"


def timed_us(contestant: Contestant, training: Training, steps: int, clock: Clock) -> float:
    """Return the microseconds per step in one block, including the work of the device."""
    contestant.enter(training.optimizer)
    wait(training.device)
    begun = clock()
    for _ in range(steps):
        contestant.step()
    wait(training.device)
    seconds = clock() - begun
    contestant.settle()
    return seconds / steps * 1e6


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(name: str, device: torch.device, pairs: int, block_s: float, others: bool, clock: Clock) -> None:
    training = MODELS[name](device)
    for _ in range(5):
        training.step()
    begun = clock()
    for _ in range(10):
        training.step()
    wait(device)
    block = max(round(block_s / (clock() - begun) * 10), 2)
    parameters = sum(p.numel() for p in training.model.parameters())
    with contestants(training, others) as (bare, *all_others):
        seen: dict[str, list[tuple[float, float]]] = {other.name: [] for other in all_others}
        gc.collect()
        for i in range(pairs):
            for other in all_others[i % len(all_others) :] + all_others[: i % len(all_others)]:
                steps = min(block, other.steps or block)
                seen[other.name].append((timed_us(bare, training, steps, clock), timed_us(other, training, steps, clock)))
        print(f"\n{name}: {parameters:,} parameters, {pairs} pairs of blocks of {block} steps\n{HEAD}")
        for logger, both in seen.items():
            show(logger, both)


def show(name: str, pairs: list[tuple[float, float]]) -> None:
    base = statistics.median(before for before, _ in pairs)
    low, middle, high = statistics.quantiles((after - before for before, after in pairs), n=4)
    print(f"{name:<34}{base:>9,.0f} µs{middle:>10,.1f} µs{middle / base:>10.2%}    {low:,.1f} .. {high:,.1f}", flush=True)


def find_synchronisations(device: torch.device, model: str) -> None:
    """Make a complete run in which any synchronisation with the device is an error."""
    print("\nsynchronisations with the device in a whole run of our hook: ", end="")
    if device.type != "cuda":
        print("not measured, no GPU")
        return
    training = MODELS[model](device)
    training.step()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'mlflow.db'}"
        log = TuningLogger(
            training.model, training.optimizer, params={}, objective="val/loss", tracking_uri=store, spool=folder
        )
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in log.batches([torch.zeros(8, device=device)] * 50):
                parameters = training.model.parameters()
                log.step(training.step(lambda weights=parameters: torch.nn.utils.clip_grad_norm_(weights, 1.0)))  # type: ignore[misc]
                log.evaluate({"val/loss": torch.ones((), device=device)})
            log.close()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    print(f"none in 50 steps of {model}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of logging per training step.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", help=f"some of {','.join(MODELS)}; all on a GPU, the first three elsewhere")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks for each logger")
    parser.add_argument("--block", type=float, default=0.4, help="seconds per block")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of PyTorch")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time of this process instead of wall time")
    parser.add_argument("--ours-only", action="store_true", help="measure only our hook")
    args = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    what = "CPU time of this process" if args.cpu_time else "wall time"
    print(f"{name} ({device}), PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads; " + what)
    names = args.models.split(",") if args.models else list(MODELS) if on_gpu else list(MODELS)[:3]
    for model in names:
        measure(
            model, device, args.pairs, args.block, not args.ours_only, time.process_time if args.cpu_time else time.perf_counter
        )
    for model in ("gpt2", "resnet50"):
        if model not in names:
            print(f"\n{model}: not measured" + ("" if on_gpu else ", no GPU"))
    find_synchronisations(device, "gpt2" if on_gpu else names[0])


if __name__ == "__main__":
    main()
