"""Trains a diffusion model of two interleaved half circles: a perceptron predicts the noise that was added to a point."""

from __future__ import annotations

import mlflow
import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from recordings.plain.common import log_uniform, mean, mlp

TRIALS, STEPS, BATCH, LEVELS = 12, 600, 128, 50


def moons() -> dict[str, str]:
    random = np.random.default_rng(6)
    points = torch.tensor(make_moons(2000, noise=0.05, random_state=0)[0], dtype=torch.float32)
    for number in range(TRIALS):
        params = {
            "learning_rate": log_uniform(random, 1e-4, 0.03),
            "width": int(random.choice([32, 64, 128])),
            "ema_decay": float(random.choice([0.9, 0.98, 0.995])),
        }
        with mlflow.start_run():
            mlflow.log_params({**params, "timesteps": LEVELS, "beta_schedule": "linear"})
            train(points, params, number)
    return {}


def train(points: Tensor, params: dict[str, float | int], seed: int) -> None:
    torch.manual_seed(seed)
    train_points, valid_points = points[:1500], points[1500:]
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.12, LEVELS), 0)
    width = int(params["width"])
    model, average = mlp(3, width, width, 2), mlp(3, width, width, 2)
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), params["learning_rate"])
    losses: list[float] = []
    for step in range(STEPS):
        loss = noise_error(model, train_points[torch.randint(len(train_points), (BATCH,))], kept)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(other.data, 1 - params["ema_decay"])
        if step % 10 == 9:
            mlflow.log_metric("train/loss", mean(losses), step=step)
            losses.clear()
        if step % 30 == 29:
            mlflow.log_metric("val/loss", validate(average, valid_points, kept), step=step)


def noise_error(model: nn.Module, points: Tensor, signal_shares: Tensor) -> Tensor:
    """Return the mean squared error of the predicted noise at random noise levels."""
    level = torch.randint(LEVELS, (len(points),))
    noise, share = torch.randn_like(points), signal_shares[level][:, None]
    noisy = share.sqrt() * points + (1 - share).sqrt() * noise
    guess = model(torch.cat([noisy, level[:, None] / LEVELS], 1))
    return (guess - noise).square().mean()


@torch.no_grad()
def validate(model: nn.Module, points: Tensor, signal_shares: Tensor) -> float:
    return mean([noise_error(model, points, signal_shares).item() for _ in range(4)])
