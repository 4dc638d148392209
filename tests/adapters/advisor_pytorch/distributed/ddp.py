"""Data parallel.

Run "ddp": a sampler that shards, seeds by rank, accumulated gradients (`no_sync`), clipping in half of the steps.
Run "alone": only rank 0 has a logger.
"""

from __future__ import annotations

import contextlib
import copy

import torch
import torch.distributed as dist
from script import begin, expect, logger, norm_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, ACCUMULATED, BATCH = 8, 2, 4
THRESHOLD = 0.05

rank, world = begin()
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.BatchNorm1d(1))
plain[3].eval()  # its statistics are per rank; a reference on all batches together differs
torch.manual_seed(100 + rank)
sampler: DistributedSampler[object] = DistributedSampler(data, seed=7)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
model = DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def reference(batches: list[list[torch.Tensor]]) -> float:
    """Return the gradient norm on the batches of all ranks together, computed in one process."""
    everyone: list[list[list[torch.Tensor]]] = [[] for _ in range(world)]
    dist.all_gather_object(everyone, batches)
    single = copy.deepcopy(plain)
    single.zero_grad()
    for batches_of_rank in everyone:
        for x, y in batches_of_rank:
            (nn.functional.mse_loss(single(x), y) / ACCUMULATED / world).backward()
    return norm_of(p.grad for p in single.parameters() if p.grad is not None)


with logger(model, optimizer, "ddp", max_train_steps=STEPS) as log:
    batches = iter(log.batches(loader))
    for step in range(STEPS):
        used: list[list[torch.Tensor]] = []
        for micro in range(ACCUMULATED):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(log.batches(loader))
                x, y = next(batches)
            used.append([x, y])
            with model.no_sync() if micro < ACCUMULATED - 1 else contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(x), y) / ACCUMULATED
                loss.backward()
                log.step(loss * ACCUMULATED)
        expect("ddp", reference(used))
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), THRESHOLD)
        optimizer.step()
        optimizer.zero_grad()
    log.evaluate({"val/error": 0.5 + rank})

log = logger(model, optimizer, "alone", max_train_steps=STEPS) if rank == 0 else None
for _ in range(STEPS):
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if log is not None:
        log.step(loss)
if log is not None:
    log.evaluate({"val/error": 0.25})
    log.close()
