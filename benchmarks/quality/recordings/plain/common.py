"""Data and networks that several training scripts share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from advisor.model.space import FloatArray


@dataclass(frozen=True)
class Split:
    """Images as rows of 64 numbers between 0 and 1, and the class of each image."""

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor


def digits(n_train: int, *, classes: tuple[int, ...] = tuple(range(10)), seed: int = 0) -> Split:
    """Return scikit-learn's digits of these classes, renumbered from zero: `n_train` for training, and at most 500 others for
    validation."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero(np.isin(labels, classes))
    chosen = np.random.default_rng(seed).permutation(chosen)
    x = torch.tensor(images[chosen] / 16, dtype=torch.float32)
    y = torch.tensor(np.searchsorted(classes, labels[chosen]))
    rest = slice(n_train, n_train + 500)
    return Split(x[:n_train], y[:n_train], x[rest], y[rest])


def mlp(*widths: int, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for low, high in pairwise(widths[:-1]):
        layers += [nn.Linear(low, high), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


def batches(n: int, size: int) -> Iterator[Tensor]:
    """Yield the indices of each batch of one epoch in random order; an incomplete last batch is dropped."""
    order = torch.randperm(n)
    for start in range(0, max(n - n % size, 1), size):
        yield order[start : start + size]


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, split: Split) -> float:
    """Train for one epoch and return the mean training loss."""
    losses = []
    for batch in batches(len(split.x), 32):
        loss = nn.functional.cross_entropy(model(split.x[batch]), split.y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return mean(losses)


@torch.no_grad()
def evaluate(model: nn.Module, split: Split) -> tuple[float, float]:
    """Return the model's loss and accuracy on the validation data."""
    model.eval()
    scores = model(split.x_valid)
    loss = nn.functional.cross_entropy(scores, split.y_valid).item()
    model.train()
    return loss, (scores.argmax(1) == split.y_valid).float().mean().item()


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(f"{np.exp(random.uniform(np.log(low), np.log(high))):.4g}")


def uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(f"{random.uniform(low, high):.4g}")


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def rows(values: Tensor) -> FloatArray:
    return values.detach().numpy().astype(float)
