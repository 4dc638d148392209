# ruff: noqa: ARG002 - a healthy training does not need the number of its step
"""A small healthy training, into which each class of `autopsy_faults.py` inserts one fault.

The seed of a training determines the network, the optimizer, the data and the step of the fault.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """A training of a regression or classification model without a fault."""

    cause: ClassVar[str] = ""
    """Cause that the autopsy should name (see `advisor.computed.stability.autopsy`); empty without a fault."""
    names: ClassVar[str] = ""
    """Text that the autopsy's sentence about the faulty tensor, layer or operation should contain."""
    steps: ClassVar[int] = 150

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.draw = random.Random(seed)
        self.at = self.draw.randint(15, 90)
        """Number of the step at which the fault is inserted."""
        self.width, self.depth = self.draw.choice([8, 16, 32]), self.draw.choice([1, 2, 3])
        self.classes = self.draw.choice([0, 3, 5])
        """Number of classes; 0 for regression."""
        self.size, self.clips = self.draw.choice([16, 32, 64]), self.draw.random() < 0.3
        self.truth = torch.randn(6, max(self.classes, 1))
        self.model: Any = self.network()
        self.prepare()
        self.optimizer = self.make_optimizer()

    def network(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(6, self.width), self.draw.choice([nn.ReLU, nn.GELU, nn.Tanh])()]
        for _ in range(self.depth):
            layers += [nn.Linear(self.width, self.width), nn.ReLU()]
        if self.draw.random() < 0.5:
            layers.insert(1, self.draw.choice([nn.BatchNorm1d, nn.LayerNorm])(self.width))
        return nn.Sequential(*layers, nn.Linear(self.width, max(self.classes, 1)))

    def prepare(self) -> None:
        """Change the network before the optimizer is created."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        weights, kind = self.model.parameters(), self.draw.choice(["sgd", "adam", "adamw"])
        if kind == "sgd":
            return torch.optim.SGD(weights, 10 ** self.draw.uniform(-2.5, -1.5), momentum=self.draw.choice([0.0, 0.9]))
        return (torch.optim.Adam if kind == "adam" else torch.optim.AdamW)(weights, 10 ** self.draw.uniform(-3.3, -2.3))

    def batch(self, i: int) -> Batch:
        """Return the batch of training step i."""
        x = torch.randn(self.size, 6)
        y = x @ self.truth + 0.1 * torch.randn(self.size, max(self.classes, 1))
        return x, y.argmax(1) if self.classes else y

    def inject(self, i: int) -> None:
        """Insert the fault, if it is due, before step i."""

    def output(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out

    def loss(self, batch: Batch) -> torch.Tensor:
        out = self.output(batch[0])
        return nn.functional.cross_entropy(out, batch[1]) if self.classes else nn.functional.mse_loss(out, batch[1])

    def step(self, i: int, batch: Batch) -> torch.Tensor:
        """Make training step i and return its loss."""
        self.inject(i)
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        self.backward(loss)
        if self.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def linears(self) -> list[nn.Linear]:
        return [module for module in self.model.modules() if isinstance(module, nn.Linear)]


class Regression(Training):
    """A training of a regression model with a single target."""

    def network(self) -> nn.Module:
        self.classes, self.truth = 0, self.truth[:, :1]
        return super().network()
