"""Trains a GAN on digits, judged by the distance between the distributions of generated and real images (lower is better)."""

from __future__ import annotations

import mlflow
import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import nn

from advisor.model.space import FloatArray
from recordings.plain.common import Split, digits, log_uniform, mlp, rows, uniform

TRIALS, STEPS, BATCH, NOISE = 12, 600, 64, 16


def adversarial() -> dict[str, str]:
    random = np.random.default_rng(5)
    split = digits(1200)
    for number in range(TRIALS):
        params = {
            "lr_g": log_uniform(random, 1e-4, 0.01),
            "lr_d": log_uniform(random, 1e-4, 0.01),
            "beta1": uniform(random, 0.0, 0.9),
            "label_smoothing": uniform(random, 0.0, 0.2),
        }
        with mlflow.start_run():
            mlflow.log_params(params)
            train(split, params, number)
    return {}


def train(split: Split, params: dict[str, float], seed: int) -> None:
    torch.manual_seed(seed)
    generator, judge = mlp(NOISE, 64, 64, 64), mlp(64, 64, 32, 1)
    opt_g = torch.optim.Adam(generator.parameters(), params["lr_g"], betas=(params["beta1"], 0.99))
    opt_d = torch.optim.Adam(judge.parameters(), params["lr_d"], betas=(params["beta1"], 0.99))
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    real_label = ones * (1 - params["label_smoothing"])
    for step in range(STEPS):
        real = split.x[torch.randint(len(split.x), (BATCH,))]
        fake = torch.sigmoid(generator(torch.randn(BATCH, NOISE)))
        d_loss = bce(judge(real), real_label) + bce(judge(fake.detach()), zeros)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = bce(judge(fake), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        if step % 10 == 0:
            mlflow.log_metrics({"g_loss": g_loss.item(), "d_loss": d_loss.item()}, step=step)
        if step % 30 == 29:
            mlflow.log_metric("fid", distance(generator, split), step=step)


@torch.no_grad()
def distance(generator: nn.Module, split: Split) -> float:
    """Return the Fréchet distance between held-out and generated images, in the first 12 principal components of real images."""
    project = PCA(12, random_state=0).fit(rows(split.x)).transform
    real, fake = project(rows(split.x_valid)), project(rows(torch.sigmoid(generator(torch.randn(500, NOISE)))))
    return frechet(real, fake)


def frechet(first: FloatArray, second: FloatArray) -> float:
    a, b = np.cov(first.T), np.cov(second.T)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(a @ b).real, 0)).sum()
    return float(((first.mean(0) - second.mean(0)) ** 2).sum() + np.trace(a) + np.trace(b) - 2 * roots)
