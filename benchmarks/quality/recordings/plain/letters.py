"""Trains a character-level LSTM language model on a text from Python's standard library."""

from __future__ import annotations

import inspect
import math
import statistics

import mlflow
import numpy as np
import torch
from torch import Tensor, nn

from recordings.plain.common import log_uniform, mean, uniform

TRIALS, STEPS, BATCH, LENGTH = 12, 200, 24, 32


class Lstm(nn.Module):
    """An LSTM that predicts the next character; its scores have the shape (batch, position, character)."""

    def __init__(self, characters: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 24)
        self.lstm = nn.LSTM(24, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of the next character for a text of shape (batch, position)."""
        scores: Tensor = self.head(self.drop(self.lstm(self.embed(text))[0]))
        return scores


def characters() -> dict[str, str]:
    random = np.random.default_rng(7)
    text = inspect.getsource(statistics)[:40_000]
    known = sorted(set(text))
    codes = torch.tensor([known.index(c) for c in text])
    for number in range(TRIALS):
        params = {
            "lr": log_uniform(random, 3e-4, 0.03),
            "hidden_size": int(random.choice([32, 64, 96])),
            "dropout": uniform(random, 0.0, 0.4),
        }
        with mlflow.start_run():
            mlflow.log_params({**params, "seq_len": LENGTH})
            train(codes, len(known), params, number)
    return {}


def train(codes: Tensor, characters: int, params: dict[str, float | int], seed: int) -> None:
    torch.manual_seed(seed)
    split = int(0.9 * len(codes))
    model = Lstm(characters, int(params["hidden_size"]), params["dropout"])
    optimizer = torch.optim.Adam(model.parameters(), params["lr"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    losses: list[float] = []
    for step in range(STEPS):
        start = torch.randint(split - LENGTH - 1, (BATCH,))
        loss = error(model, codes, start)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 5 == 4:
            mlflow.log_metrics({"train_loss": mean(losses), "lr": schedule.get_last_lr()[0]}, step=step)
            losses.clear()
        schedule.step()
        if step % 20 == 19:
            val_loss = validate(model, codes, split)
            mlflow.log_metrics({"val_loss": val_loss, "perplexity": math.exp(min(val_loss, 50))}, step=step)


def error(model: nn.Module, codes: Tensor, start: Tensor) -> Tensor:
    text = codes[start[:, None] + torch.arange(LENGTH + 1)]
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def validate(model: nn.Module, codes: Tensor, split: int) -> float:
    model.eval()
    value = error(model, codes, torch.arange(split, len(codes) - LENGTH - 1, LENGTH)).item()
    model.train()
    return value
