"""Fine-tunes a perceptron that has learned digits to rotated or noisy digits, and evaluates it on old and new digits."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from recordings.finetuning.grpo import Logs
from recordings.plain.common import Split, digits, evaluate, mlp


@dataclass(frozen=True)
class FineTuning:
    """The settings of one fine-tuning."""

    learning_rate: float = 1e-3
    turned: bool = True
    """Whether the new digits are rotated by 90 degrees, so that the old features are wrong for them; otherwise, the new digits are
    noisy."""
    replay: float = 0.0
    """Share of old examples in each batch."""
    max_steps: int = 150
    evaluate_every: int = 10


@lru_cache(maxsize=4)
def data(turned: bool, seed: int) -> tuple[Split, Split]:
    """Return the old and the new digits."""
    old = digits(700, seed=seed)
    torch.manual_seed(seed)

    def renewed(x: Tensor) -> Tensor:
        if turned:
            return x.view(-1, 8, 8).rot90(dims=(1, 2)).reshape(-1, 64)
        return x + 0.25 * torch.randn_like(x)

    return old, Split(renewed(old.x), old.y, renewed(old.x_valid), old.y_valid)


@lru_cache(maxsize=4)
def pretrained(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    split, model = data(True, seed)[0], mlp(64, 64, 64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(250):
        batch = torch.randint(len(split.x), (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(split.x[batch]), split.y[batch]).backward()
        optimizer.step()
    return model


def train(settings: FineTuning, seed: int, base: int = 0) -> Logs:
    """Train and return the logged points, including an evaluation before the first step. base: seed of the data and the pretrained
    model."""
    old, new = data(settings.turned, base)
    model, logs = deepcopy(pretrained(base)), defaultdict(list)
    torch.manual_seed(1000 * base + seed)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate)
    count = round(32 * settings.replay)
    for step in range(settings.max_steps + 1):
        if step % settings.evaluate_every == 0:
            for name, split in (("new", new), ("old", old)):
                for quantity, value in zip(("loss", "accuracy"), evaluate(model, split), strict=True):
                    logs[f"eval_{name}_{quantity}"].append((step, value))
        again, fresh = torch.randint(len(old.x), (count,)), torch.randint(len(new.x), (32 - count,))
        x, y = torch.cat([old.x[again], new.x[fresh]]), torch.cat([old.y[again], new.y[fresh]])
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logs["train/loss"].append((step, loss.item()))
    return dict(logs)
