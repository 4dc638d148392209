"""Trains on a GPU with one cause of slowness at a time, and prints the verdicts that the rules about speed reach.

    python benchmarks/quality/gpu_rules.py              # about eight minutes on one GPU
    python benchmarks/quality/gpu_rules.py --seconds 5 --device cpu --only healthy   # does it run?

Each study has two trials of a perceptron, or one trial for each batch size. A cell holds a rule's verdict: "fires", "quiet", or "-"
if data are missing. The last column lists the rules that should fire. To log the GPU's utilisation, the script needs
`nvidia-ml-py`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import advisor
from advisor_pytorch import TuningLogger

Batch = tuple[torch.Tensor, torch.Tensor]
RULES = ("input-bound", "host-sync", "gpu-underused", "grad-accumulation", "batch-throughput")
FEATURES, CLASSES = 1024, 100


@dataclass(frozen=True)
class SlownessCase:
    """A training with one cause of slowness, or with none. With these sizes, a healthy training step takes some milliseconds on the
    GPU."""

    expected: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = (8192, 8192)
    width: int = 4096
    depth: int = 4
    micro_batches: int = 1
    loader: Callable[[int], Iterable[Any]] | None = None
    reads_each_step: bool = False
    """Whether the loop reads the loss and computes a metric on the host at each step, as in many scripts."""
    rests_s: float = 0.0
    """Seconds that the loop spends on other work between two steps."""


class SlowToDecode(Dataset[tuple[np.ndarray, int]]):
    """A data set that takes some time to decode each example."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng(i)
        image = rng.standard_normal(FEATURES, dtype=np.float32)
        for _ in range(4):
            image = np.sort(image)[::-1] * np.float32(0.9) + image
        return image, i % CLASSES


def slow_loader(workers: int) -> Callable[[int], Iterable[Any]]:
    """Return a function that creates a loader for a given batch size."""
    ahead = 4 if workers else None
    return lambda size: DataLoader(SlowToDecode(), size, num_workers=workers, pin_memory=True, prefetch_factor=ahead)


SITUATIONS = {
    "healthy": SlownessCase(),
    "healthy, loader with workers": SlownessCase(batch_sizes=(512, 512), width=8192, depth=12, loader=slow_loader(12)),
    "the loader decodes in the loop": SlownessCase(("input-bound",), (512, 512), loader=slow_loader(0)),
    "loss and metric read at each step": SlownessCase(("host-sync",), (2048, 2048), width=2048, reads_each_step=True),
    "the loop does other work": SlownessCase(("host-sync",), (2048, 2048), rests_s=0.01),
    "small pieces": SlownessCase(("gpu-underused",), (8, 8), width=32, depth=2),
    "accumulated without need": SlownessCase(("grad-accumulation",), micro_batches=8),
    "batch sizes to a plateau": SlownessCase(("batch-throughput",), (64, 256, 1024, 4096, 8192, 16384)),
    "batch sizes, throughput grows": SlownessCase((), (16, 32, 64, 128), width=8192),
}


class TrainingLoop:
    """Trains a perceptron on random data that stays on the device, unless the case has a loader."""

    def __init__(self, situation: SlownessCase, batch_size: int, device: torch.device) -> None:
        self.situation, self.batch_size, self.device = situation, batch_size, device
        width = situation.width
        layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.ReLU()]
        for _ in range(situation.depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Linear(width, CLASSES)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, fused=device.type == "cuda")

    def batches(self) -> Iterable[Batch]:
        if self.situation.loader is not None:
            return self.situation.loader(self.batch_size)
        return ResidentBatch(self.batch_size // self.situation.micro_batches, self.device)

    def train(self, log: TuningLogger, seconds: float) -> None:
        end = time.monotonic() + seconds
        for i, (x, y) in enumerate(log.batches(self.batches())):
            loss, out = self.loss(x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True))
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
            if (i + 1) % self.situation.micro_batches:
                continue
            self.optimizer.step()
            self.optimizer.zero_grad()
            log.step(loss)
            self.rest(loss, out, y)
            if time.monotonic() > end:
                break
        log.evaluate({"val/loss": loss})

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16):
            out = self.model(x)
            return nn.functional.cross_entropy(out, y) / self.situation.micro_batches, out

    def rest(self, loss: torch.Tensor, out: torch.Tensor, y: torch.Tensor) -> None:
        """Do the loop's other work after a training step."""
        if self.situation.reads_each_step:
            loss.item()
            predicted, true = out.detach().float().cpu().numpy(), y.cpu().numpy()
            np.mean([np.mean(predicted[true == k].argmax(1) == k) for k in range(CLASSES)])
        time.sleep(self.situation.rests_s)


class ResidentBatch:
    """An endless loader of one random batch, which stays on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.batch = torch.randn(size, FEATURES, device=device), torch.randint(CLASSES, (size,), device=device)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.batch


def run(name: str, situation: SlownessCase, seconds: float, device: torch.device, store: str) -> None:
    """Train the trials of a case for some seconds each, as runs of the experiment `name`."""
    for i, batch_size in enumerate(situation.batch_sizes):
        torch.manual_seed(i)
        work = TrainingLoop(situation, batch_size, device)
        with TuningLogger(
            work.model,
            work.optimizer,
            params={"batch_size": batch_size, "learning_rate": 0.01 * (i + 1)},
            objective="val/loss",
            seed=i,
            experiment=name,
            tracking_uri=store,
            close_timeout_s=120.0,
        ) as log:
            work.train(log, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the verdicts of the rules about speed on real trainings on a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=28.0, help="seconds of each trial; trials of batch sizes: a third")
    parser.add_argument("--only", action="append", choices=list(SITUATIONS))
    parser.add_argument("--show", action="store_true", help="print the findings")
    options = parser.parse_args()
    device = torch.device(options.device)
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    print(f"{what}, PyTorch {torch.__version__}\n\n| training | {' | '.join(RULES)} | should fire |\n|---|{'---|' * 6}")
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'mlflow.db'}"
        for name in options.only or SITUATIONS:
            situation = SITUATIONS[name]
            seconds = options.seconds / (3 if len(situation.batch_sizes) > 2 else 1)
            run(name, situation, seconds, device, store)
            verdicts = advisor.analyze(name, tracking_uri=store).verdicts
            status = {v.rule: v.status for v in verdicts}
            cells = [_CELLS.get(status[rule], status[rule]) for rule in RULES]
            print(f"| {name} | {' | '.join(cells)} | {', '.join(situation.expected) or 'none'} |", flush=True)
            if options.show:
                for finding in (f for v in verdicts if v.rule in RULES for f in v.findings):
                    print(f"    {finding.rule}, {finding.severity}: {finding}")


_CELLS = {"fired": "**fires**", "missing": "-"}


if __name__ == "__main__":
    main()
