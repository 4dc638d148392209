"""Trains SimCLR on digits: contrastive pre-training without labels, judged by a linear probe of the learned features."""

from __future__ import annotations

import mlflow
import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from torch import Tensor, nn

from recordings.plain.common import Split, digits, log_uniform, mean, mlp, rows, uniform

TRIALS, STEPS, BATCH = 12, 400, 128


def contrastive() -> dict[str, str]:
    random = np.random.default_rng(4)
    split = digits(1200)
    for number in range(TRIALS):
        params = {
            "lr": log_uniform(random, 1e-4, 0.03),
            "temperature": log_uniform(random, 0.05, 1.0),
            "noise": uniform(random, 0.05, 0.5),
        }
        with mlflow.start_run():
            mlflow.log_params(params)
            train(split, params, number)
    return {}


def train(split: Split, params: dict[str, float], seed: int) -> None:
    torch.manual_seed(seed)
    encoder, head = mlp(64, 96, 48), mlp(48, 48, 24)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], params["lr"])
    losses: list[float] = []
    for step in range(STEPS):
        images = split.x[torch.randint(len(split.x), (BATCH,))]
        views = torch.cat([augment(images, params["noise"]), augment(images, params["noise"])])
        loss = nt_xent(head(torch.relu(encoder(views))), params["temperature"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 8 == 7:
            mlflow.log_metric("train_loss", mean(losses), step=step)
            losses.clear()
        if step % 25 == 24:
            mlflow.log_metric("probe_accuracy", probe(encoder, split), step=step)


def augment(images: Tensor, noise: float) -> Tensor:
    """Shift each image by at most one pixel, scale its brightness and add noise."""
    across, down = (int(torch.randint(-1, 2, ())) for _ in range(2))
    shifted = images.view(-1, 8, 8).roll((down, across), (1, 2)).reshape(-1, 64)
    return shifted * (0.7 + 0.6 * torch.rand(len(images), 1)) + noise * torch.randn_like(images)


def nt_xent(projected: Tensor, temperature: float) -> Tensor:
    """Return the normalised, temperature-scaled cross-entropy between two views of each image; each half of the rows holds one
    view."""
    unit = nn.functional.normalize(projected, dim=1)
    similar = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    n = len(unit) // 2
    return nn.functional.cross_entropy(similar, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


@torch.no_grad()
def probe(encoder: nn.Module, split: Split) -> float:
    known, new = rows(encoder(split.x[:400])), rows(encoder(split.x_valid))
    return float(RidgeClassifier().fit(known, split.y[:400].numpy()).score(new, split.y_valid.numpy()))
