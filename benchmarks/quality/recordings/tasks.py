"""Data sets and networks of the recorded studies. All data sets come with Python or scikit-learn; nothing is downloaded."""

from __future__ import annotations

import pydoc_data.topics
from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from recordings.attention import Attention
from recordings.training import Training

CONTEXT = 16
"""Context length of the transformer in characters."""
LETTERS = 64


def split(training: Training) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and validation sets."""
    x, y = _examples(training.task)
    x = x * training.input_scale if x.is_floating_point() else x
    if training.wrong_labels:
        chance = torch.Generator().manual_seed(3)
        wrong = torch.rand(y.shape, generator=chance) < training.wrong_labels
        y = torch.where(wrong, torch.randint(classes(training.task), y.shape, generator=chance), y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    valid = order[: training.n_valid]
    train = order[training.n_valid :][: training.n_train]
    if training.overlap:
        train = torch.cat([valid, train])[: training.n_train]
    if training.sorted_by_class:
        train = train[torch.argsort(y[train] if y.ndim == 1 else y[train, 0], stable=True)]
    targets = y[train]
    if training.random_labels:
        targets = targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(1))]
    return TensorDataset(x[train], targets), TensorDataset(x[valid], y[valid])


@lru_cache(maxsize=4)
def _examples(task: str) -> tuple[torch.Tensor, torch.Tensor]:
    if task.startswith("digits"):
        images, labels = load_digits(return_X_y=True)
        return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    letters = _synthetic_text() if task == "walk" else _help_text()
    windows = letters.unfold(0, CONTEXT + 1, CONTEXT // 2)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _help_text() -> torch.Tensor:
    """Return the characters of the language reference in Python's help, as numbers below `LETTERS`."""
    text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))[:120_000].lower()
    known = {letter: i for i, letter in enumerate(sorted(set(text), key=lambda c: (-text.count(c), c))[: LETTERS - 1])}
    return torch.tensor([known.get(letter, LETTERS - 1) for letter in text])


def _synthetic_text() -> torch.Tensor:
    """Return a text in a synthetic language: a rule determines each letter from the two letters before it; one letter in ten is
    random."""
    chance = torch.Generator().manual_seed(2)
    rule = torch.randint(16, (16, 16), generator=chance)
    letters = [0, 1]
    noises, guesses = torch.rand(40_000, generator=chance), torch.randint(16, (40_000,), generator=chance)
    for noise, letter in zip(noises.tolist(), guesses.tolist(), strict=True):
        letters.append(letter if noise < 0.1 else int(rule[letters[-2], letters[-1]]))
    return torch.tensor(letters)


def classes(task: str) -> int:
    """Return the number of classes or letters in the task."""
    return {"text": LETTERS, "ngrams": LETTERS, "walk": 16}.get(task, 10)


def build(training: Training) -> nn.Module:
    """Return the task's network, with weights drawn from PyTorch's random generator."""
    if training.task == "digits-mlp":
        return _make_mlp(training)
    if training.task == "digits-cnn":
        return _make_cnn(training)
    if training.task == "digits-residual":
        blocks = [ResidualBlock(training.width, post=training.norm == "post") for _ in range(training.depth)]
        last = nn.Identity() if training.norm == "post" else nn.LayerNorm(training.width)
        return nn.Sequential(nn.Linear(64, training.width), *blocks, last, nn.Linear(training.width, 10))
    return NGrams(training.depth) if training.task == "ngrams" else Transformer(training)


def _make_mlp(training: Training) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 64
    for _ in range(training.depth):
        layers += [nn.Linear(inputs, training.width), *_make_norm(training), nn.ReLU(), nn.Dropout(training.dropout)]
        inputs = training.width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def _make_norm(training: Training) -> list[nn.Module]:
    if training.norm == "batch":
        return [nn.BatchNorm1d(training.width)]
    return [nn.LayerNorm(training.width)] if training.norm == "layer" else []


def _make_cnn(training: Training) -> nn.Module:
    norm = nn.BatchNorm2d if training.norm == "batch" else nn.Identity
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 12, 3, padding=1), norm(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1), norm(24), nn.ReLU(),
        nn.Flatten(), nn.Dropout(training.dropout), nn.Linear(24 * 16, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """A residual block of a perceptron, with normalisation after or before the branch."""

    def __init__(self, width: int, *, post: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.branch = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.post = post

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block; input and output have the shape (batch, width)."""
        y: torch.Tensor = self.norm(x + self.branch(x)) if self.post else x + self.branch(self.norm(x))
        return y


class NGrams(nn.Module):
    """Predicts the next letter with a weight for each sequence of 1 to `depth` preceding letters, looked up by hash."""

    BUCKETS = 8192

    def __init__(self, depth: int) -> None:
        super().__init__()
        tables = [nn.Embedding(self.BUCKETS, LETTERS) for _ in range(depth)]
        for table in tables:
            nn.init.zeros_(table.weight)
        self.weights = nn.ModuleList(tables)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return scores of the next letter, shape (batch, letters, position), for letters of shape (batch, position)."""
        code, before = letters, letters
        scores = self.weights[0](code)
        for table in list(self.weights)[1:]:
            before = nn.functional.pad(before, (1, -1))
            code = (code * 31 + before + 1) % 1_000_003
            scores = scores + table(code % self.BUCKETS)
        result: torch.Tensor = scores.transpose(1, 2)
        return result


class Transformer(nn.Module):
    """A transformer decoder of `depth` blocks, with normalisation before or after the residual branches."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        letters = classes(training.task)
        self.embed = nn.Embedding(letters, training.width)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, training.width))
        block = nn.TransformerEncoderLayer(
            training.width,
            nhead=4,
            dim_feedforward=2 * training.width,
            dropout=training.dropout,
            batch_first=True,
            norm_first=training.norm != "post",
        )
        if training.attention is not None:
            block.self_attn = Attention(training.width, 4, normalised=training.attention == "qk-norm")
        last = nn.LayerNorm(training.width) if training.attention is not None else None
        self.blocks = nn.TransformerEncoder(block, training.depth, last, enable_nested_tensor=False)
        self.head = nn.Linear(training.width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return scores of the next letter, shape (batch, letters, position), for letters of shape (batch, position)."""
        hidden = self.blocks(self.embed(letters) + self.place, mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.head(hidden)
        return scores.transpose(1, 2)
