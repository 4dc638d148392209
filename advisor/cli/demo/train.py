"""Trains the demo's small network on scikit-learn's handwritten digits, and logs with our hook as any project would."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from advisor_pytorch import TuningLogger

OBJECTIVE_METRIC = "val/error"
BATCH_SIZE = 64


@lru_cache(maxsize=1)
def _load_digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images (n, 64) in 0..1 and labels (n,), then validation images and labels, of a fixed split."""
    images, labels = load_digits(return_X_y=True)
    train_count = train_test_split(images / 16.0, labels, test_size=797, random_state=0, stratify=labels)
    x, x_val, y, y_val = (torch.as_tensor(part) for part in train_count)
    return x.float(), y.long(), x_val.float(), y_val.long()


def train_digits_network(
    params: Mapping[str, Any], *, max_train_steps: int, evaluate_every: int, seed: int, checkpoint_dir: str
) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    x, y, x_val, y_val = _load_digits()
    units = int(params.get("width", 128))
    model = nn.Sequential(nn.Linear(64, units), nn.ReLU(), nn.Dropout(float(params.get("dropout", 0.0))), nn.Linear(units, 10))
    rate, momentum = float(params["learning_rate"]), float(params.get("momentum", 0.9))
    decay = float(params.get("weight_decay", 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
    warmup = max(int(params.get("warmup_steps", 1)), 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    loss_function = nn.CrossEntropyLoss(label_smoothing=float(params.get("label_smoothing", 0.0)))
    shuffle_generator = torch.Generator().manual_seed(seed)
    with TuningLogger(
        model,
        optimizer,
        params=dict(params),
        objective=OBJECTIVE_METRIC,
        direction="minimize",
        max_train_steps=max_train_steps,
        batch_size=BATCH_SIZE,
        seed=seed,
        checkpoints=3,
        checkpoint_dir=checkpoint_dir,
        spool=f"{checkpoint_dir}/spool",
    ) as log:
        for step in range(1, max_train_steps + 1):
            batch_indices = torch.randint(len(x), (BATCH_SIZE,), generator=shuffle_generator)
            loss = loss_function(model(x[batch_indices]), y[batch_indices])
            optimizer.zero_grad()
            loss.backward()
            if "grad_clip_norm" in params:
                nn.utils.clip_grad_norm_(model.parameters(), float(params["grad_clip_norm"]))
            optimizer.step()
            schedule.step()
            log.step(loss)
            if step % evaluate_every == 0:
                log.evaluate(_evaluate_network(model, x, y, x_val, y_val))


@torch.no_grad()
def _evaluate_network(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, x_val: torch.Tensor, y_val: torch.Tensor
) -> dict[str, float]:
    model.eval()
    scores, val_scores = model(x), model(x_val)
    model.train()
    return {
        OBJECTIVE_METRIC: float((val_scores.argmax(1) != y_val).float().mean()),
        "val/loss": float(nn.functional.cross_entropy(val_scores, y_val)),
        "train/error": float((scores.argmax(1) != y).float().mean()),
    }
