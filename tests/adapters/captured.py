"""A small real training whose steps are captured, with the true norms to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from advisor import contract
from advisor_pytorch.steps.capture import StepCapture
from advisor_pytorch.steps.rows import PendingChunk

Rows = list[dict[str, float]]


class Collector:
    """Receives chunks like a recorder."""

    def __init__(self) -> None:
        self.chunks: list[PendingChunk] = []
        self.tags: dict[str, str] = {}
        self.warnings: list[str] = []

    def submit_chunk(self, chunk: PendingChunk) -> None:
        self.chunks.append(chunk)

    def on_observed_tag(self, tag: str, value: str) -> None:
        self.tags[tag] = value

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        self.warnings.append(f"optimizer {k} was replaced by {type(optimizer).__name__}")

    def warn(self, key: str, message: str) -> None:
        self.warnings.append(message)


class Training:
    """Trains `model`, by default a small network with SGD."""

    def __init__(self, *optimizers: torch.optim.Optimizer, model: nn.Module | None = None) -> None:
        self.model = model or network()
        self.optimizers = optimizers or (torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9),)
        self.collector = Collector()
        self.capture = StepCapture(self.optimizers, self.collector)

    def loss(self) -> torch.Tensor:
        x = torch.randn(32, 8)
        return nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))

    def backward(self) -> torch.Tensor:
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def run(self, steps: int = 3, before_step: Callable[[int], object] = lambda i: None) -> list[float]:
        """Make some steps; return the true norms of their gradients, before `before_step`."""
        true = []
        for i in range(steps):
            loss = self.backward()
            true.append(norm(self.model.parameters()))
            before_step(i)
            self.step()
            self.capture.add_loss(loss)
        return true

    def numbered_rows(self) -> list[tuple[int, dict[str, float]]]:
        self.capture.stop()
        assert self.collector.warnings == []
        return [(step, dict(values)) for chunk in self.collector.chunks for step, _, values in chunk.rows()]

    def rows(self) -> Rows:
        rows = self.numbered_rows()
        assert [step for step, _ in rows] == list(range(len(rows)))
        return [values for _, values in rows]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def norm(parameters: Iterable[nn.Parameter]) -> float:
    return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())


def column(rows: Rows, name: str = contract.GRAD_NORM) -> list[float]:
    return [row[name] for row in rows]
