"""Fully sharded (FSDP2), with parameters whose first dimension is odd or smaller than the world, and one that is not sharded.

Run "unclipped"; run "clipped" (half of its steps, with accumulated gradients); run "by-value"; run "partly", with a parameter that
is not sharded; run "first-version", by FSDP1. Given "hsdp", on two groups of replicas.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from script import begin, end, expect, logger, norm_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

STEPS, THRESHOLD = 6, 10.0

rank, world = begin()
if "hsdp" in sys.argv:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
else:
    mesh = init_device_mesh("cpu", (world,))


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 1))


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """Return the whole gradient; for an unreduced one, a tensor with the mean of the ranks' squares."""
    if isinstance(gradient, DTensor):
        return gradient.full_tensor()
    squares = gradient.square()
    dist.all_reduce(squares)
    return (squares / world).sqrt()


def train(name: str, clip: str = "", accumulated: int = 1, partly: bool = False) -> None:
    model = make()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params={model[2].weight} if partly else None)
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logger(model, optimizer, name, max_train_steps=STEPS, batch_size=4, seed=3) as log:
        for step in range(STEPS):
            for micro in range(accumulated):
                model.set_requires_gradient_sync(micro == accumulated - 1)
                x = torch.randn(4, 3)
                loss = (model(x) - 3 * x[:, :1]).square().mean() * 0.4 * step
                loss.backward()
                log.step(loss)
            expect(name, norm_of([whole(p.grad) for p in model.parameters() if p.grad is not None]))
            if clip == "norm" and step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), THRESHOLD)
            if clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
        log.evaluate({"val/error": 0.5})


def train_first_version() -> None:
    model = FullyShardedDataParallel(make(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with logger(model, optimizer, "first-version", max_train_steps=STEPS) as log:
        for _ in range(STEPS):
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.step(loss)
        log.evaluate({"val/error": 0.5})


train("unclipped")
train("clipped", "norm", accumulated=2)
train("by-value", "value")
train("partly", partly=True)
train_first_version()
if __name__ == "__main__":
    end()
