"""Fully sharded (FSDP2), with parameters whose first dimension is odd or smaller than the world, and one that is not sharded.

Run "unclipped", run "clipped" (half of its steps, with accumulated gradients), run "by-value".
Given "hsdp", on two groups of replicas.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from script import begin, expect, logger, norm_of, write_expected
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, THRESHOLD = 6, 10.0

rank, world = begin()
if "hsdp" in sys.argv:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
else:
    mesh = init_device_mesh("cpu", (world,))


def train(name: str, clip: str = "", accumulated: int = 1) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 1))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
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
            whole = [p.grad.full_tensor() for p in model.parameters() if p.grad is not None]
            expect(name, norm_of(whole))
            if clip == "norm" and step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), THRESHOLD)
            if clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
        log.evaluate({"val/error": 0.5})


train("unclipped")
train("clipped", "norm", accumulated=2)
train("by-value", "value")
write_expected()
dist.barrier()
dist.destroy_process_group()
