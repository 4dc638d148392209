"""A sharded model that all ranks save together: run "saved", whose second checkpoint fails on one rank, and which is resumed."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from script import begin, logger
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from advisor_pytorch import TuningLogger

rank, world = begin()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def save(path: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
    if path.name == "step-000000007" and rank == 1:
        raise RuntimeError("one rank fails")


def load(path: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def train(log: TuningLogger, steps: int) -> None:
    for _ in range(steps):
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss)


def whole() -> list[torch.Tensor]:
    parts = [p.detach() for p in model.parameters()]
    return [p.full_tensor().clone() for p in parts if isinstance(p, DTensor)]


refused = ""
try:
    logger(model, optimizer, "saved", checkpoints=1)
except ValueError as error:
    refused = str(error)
assert "save_on_all_ranks" in refused, refused
together = {"checkpoints": 1, "save": save, "load": load, "save_on_all_ranks": True, "resume": True}
log = logger(model, optimizer, "saved", **together)
for made, error in ((4, 0.5), (4, 0.1), (2, 0.3)):  # the ranks disagree on the value, and the second save fails
    train(log, made)
    log.evaluate({"val/error": error + 10 * rank})
saved = whole()
log.close("stopped")
dist.barrier()
train(log, 5)
again = logger(model, optimizer, "saved", **together)
assert again.steps == 10, again.steps
assert len(saved) == 4
assert all(torch.equal(a, b) for a, b in zip(saved, whole(), strict=True))
again.close("stopped")
