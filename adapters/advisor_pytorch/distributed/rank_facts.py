"""What each rank of a distributed training says about itself, and the tag that is made of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor_pytorch.steps.sharding import is_flattened, is_sharded

Facts = dict[str, Any]
"""Values of `contract.TAG_RANKS` by fact: JSON's plain ones."""

MAX_TAG = 5000
"""Characters that every store takes as the value of a tag."""


def own_rank() -> int:
    """This process's rank: the process group's, or the launcher's RANK where there is none yet; 0 where nothing is distributed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _number("RANK", 0)


def own_world_size() -> int:
    """How many ranks there are, found like `own_rank`."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _number("WORLD_SIZE", 1)


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable) or default)
    except ValueError:
        return default


def of_process(model: torch.nn.Module, seed: int | None, *, leads: bool, checkpoints: bool) -> Facts:
    """What is known when the training begins. No seed: PyTorch's; `leads`: the run is logged from this rank."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    facts: Facts = {
        "seed": torch.initial_seed() if seed is None else seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "host": socket.gethostname(),
        "checkpoints": checkpoints,
        "logs": leads or is_logging(),
    }
    batch_norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if batch_norms:
        facts["sync_batch_norm"] = all(isinstance(m, torch.nn.SyncBatchNorm) for m in batch_norms)
    return facts


def of_loader(loader: object) -> Facts:
    """What a training loader shows: the seed that it shuffles by, and how many examples this rank sees in an epoch."""
    facts: Facts = {}
    with contextlib.suppress(
        Exception
    ):  # people write samplers of all kinds, and this is none of the training's business
        facts["loader_seed"] = _loader_seed(loader)
    with contextlib.suppress(Exception):  # a stream has no length
        facts["shard_examples"] = len(loader.sampler)  # type: ignore[attr-defined]
    return facts


def _loader_seed(loader: Any) -> int:
    sampler = loader.sampler
    if isinstance(sampler, torch.utils.data.RandomSampler):
        return torch.initial_seed() if sampler.generator is None else int(sampler.generator.initial_seed())
    return int(sampler.seed)  # a DistributedSampler's


def is_logging() -> bool:
    """Whether this process logs to MLflow or Weights & Biases by itself."""
    mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
    with contextlib.suppress(Exception):  # it is half imported, or cannot reach its server
        if mlflow is not None and mlflow.active_run() is not None:
            return True
    run = getattr(wandb, "run", None)
    return run is not None and not getattr(run, "disabled", False)


def parallelism(model: torch.nn.Module) -> str:
    """How the model is spread: "fsdp", "ddp", or "other" where its modules do not show it (DDP's wrapper may not be given)."""
    parameters = list(model.parameters())
    if any(is_sharded(p) for p in parameters) or is_flattened(parameters):
        return "fsdp"
    if any(isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in model.modules()):
        return "ddp"
    return "other"


def describe(parallel: str, backend: str, by_rank: Sequence[Mapping[str, Any] | None]) -> str:
    """The value of `contract.TAG_RANKS`; what a rank did not say, or its None, becomes null. Long lists are cut off to fit."""
    shortest = len(by_rank)
    while True:
        text = _describe(parallel, backend, by_rank, shortest)
        if len(text) <= MAX_TAG or shortest == 0:
            return text
        shortest //= 2


def _describe(parallel: str, backend: str, by_rank: Sequence[Mapping[str, Any] | None], longest: int) -> str:
    names = sorted({name for facts in by_rank if facts for name in facts})
    said: dict[str, Any] = {}
    for name in names:
        values = [facts.get(name) if facts else None for facts in by_rank]
        if all(v == values[0] and type(v) is type(values[0]) for v in values):
            said[name] = {"same": values[0]}
        else:
            said[name] = {"by_rank": values if len(values) <= longest else [*values[:longest], "..."]}
    return json.dumps({"world_size": len(by_rank), "parallel": parallel, "backend": backend, "facts": said})


def global_batch(by_rank: Sequence[Mapping[str, Any] | None]) -> int | None:
    """Examples of one optimizer step over all ranks, those that said nothing taken to be like the mean of the others."""
    known = [int(facts["batch_size"]) for facts in by_rank if facts and facts.get("batch_size")]
    return round(sum(known) / len(known) * len(by_rank)) if known else None
