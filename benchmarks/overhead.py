"""What the hook costs: a bare training loop against the same loop with `TuningLogger`.

    python benchmarks/overhead.py [--device cuda] [--blocks 60] [--steps 5]

Both loops train the same network of 10 million parameters with the same optimizer, in turns: a block of bare steps, then a block of
logged ones, and so on, the order changing each time, so that what else the machine does falls on both alike. Each pair of blocks
gives a difference; the table shows the medians, and the middle half of the differences. A CUDA device is waited for at the end of a
block, never within one. The gradient norm, the part that grows with the model, is also measured by itself (a loop that clips its
gradients has it anyway), and so is the hook on a network of a few numbers, which is the part that does not grow.
The store is SQLite, as by default; the process that writes it runs on the same machine meanwhile, as it would.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from advisor_pytorch import TuningLogger
from advisor_pytorch.capture import global_norm

WIDTH = 1265
LAYERS = 6


class Training:
    """A multilayer perceptron that learns noise: of 10 million parameters, unless another width is given."""

    def __init__(self, device: torch.device, batch_size: int, width: int = WIDTH) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(width, 300)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(batch_size, width, device=device)
        self.y = torch.randint(300, (batch_size,), device=device)

    def step(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def timed(block: Callable[[], None], device: torch.device) -> float:
    """Seconds that a block takes, the device's work included."""
    wait(device)
    begun = time.perf_counter()
    block()
    wait(device)
    return time.perf_counter() - begun


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(
    bare: Callable[[], None], other: Callable[[], None], blocks: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Seconds of each block of either kind, in pairs of changing order."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for i in range(blocks):
        for kind in (0, 1) if i % 2 == 0 else (1, 0):
            seconds[kind].append(timed((bare, other)[kind], device))
    return seconds


def show(name: str, bare: list[float], other: list[float], steps: int) -> None:
    """One line of the table, in microseconds per step."""
    base = statistics.median(bare) / steps * 1e6
    added = [(b - a) / steps * 1e6 for a, b in zip(bare, other, strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    print(f"{name:<28}{base:>12,.0f}{middle:>12,.0f}{middle / base:>9.2%}    {low:,.0f} .. {high:,.0f}")


def measure_norm(training: Training, blocks: int, steps: int, device: torch.device) -> None:
    def run(takes_norm: bool) -> None:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(training.model(training.x), training.y)
            loss.backward()  # type: ignore[no-untyped-call]
            if takes_norm:
                global_norm([p.grad for p in training.model.parameters() if p.grad is not None])
            training.optimizer.step()
            training.optimizer.zero_grad()

    show("gradient norm by itself", *compare(lambda: run(False), lambda: run(True), blocks, device), steps)


def measure_hook(name: str, plain: Training, logged: Training, blocks: int, steps: int, device: torch.device) -> None:
    def run_bare() -> None:
        for _ in range(steps):
            plain.step()

    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'mlflow.db'}"
        with TuningLogger(
            logged.model,
            logged.optimizer,
            params={"learning_rate": 1e-4},
            objective="val/loss",
            batch_size=len(logged.x),
            experiment="overhead",
            tracking_uri=store,
            spool=folder,
            close_timeout_s=120.0,
        ) as log:

            def run_logged() -> None:
                for _ in range(steps):
                    log.step(logged.step())

            begun = time.monotonic()  # the store's process starts up meanwhile: a cost of a run, not of a step
            while log.run_id is None and time.monotonic() - begun < 120:
                run_logged()
                time.sleep(0.1)
            show(name, *compare(run_bare, run_logged, blocks, device), steps)


def measure(device: torch.device, blocks: int, steps: int, batch_size: int) -> None:
    plain, logged = Training(device, batch_size), Training(device, batch_size)
    for _ in range(10):
        plain.step()
    measure_norm(plain, blocks, steps, device)
    measure_hook("the whole hook", plain, logged, blocks, steps, device)
    plain, logged = Training(device, 2, width=4), Training(device, 2, width=4)
    measure_hook("the hook, tiny network", plain, logged, blocks, 20 * steps, device)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the hook per training step.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--blocks", type=int, default=60, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=5, help="steps per block")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of PyTorch")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    parameters = sum(p.numel() for p in Training(torch.device("cpu"), 1).model.parameters())
    print(
        f"{on} ({device}), PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads, {parameters:,} parameters,"
    )
    print(
        f"AdamW, batch of {args.batch_size}, {args.blocks} pairs of blocks of {args.steps} steps; microseconds per step\n"
    )
    print(f"{'':<28}{'bare':>12}{'added':>12}{'share':>9}    middle half")
    measure(device, args.blocks, args.steps, args.batch_size)


if __name__ == "__main__":
    main()
