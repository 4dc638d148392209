"""Collects facts about each rank of a distributed training, which rank 0 combines into one tag."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor_logging.limits import MAX_VALUE_CHARS
from advisor_pytorch.steps.device import model_device
from advisor_pytorch.steps.gradients import is_fully_sharded

Facts = dict[str, Any]
"""Facts about one rank by name, with JSON-compatible values, for `contract.TAG_RANKS`."""


def current_rank() -> int:
    """Return this process's rank: from the process group, else from the launcher's variable RANK, else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _integer_environment_variable("RANK", 0)


def current_world_size() -> int:
    """Return the number of ranks: from the process group, else from the launcher's variable WORLD_SIZE, else 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _integer_environment_variable("WORLD_SIZE", 1)


def _integer_environment_variable(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable) or default)
    except ValueError:
        return default


def process_facts(model: torch.nn.Module, seed: int | None, *, is_rank_0: bool, checkpoints: bool) -> Facts:
    """Return the facts that are known before the training starts. is_rank_0: whether this is rank 0."""
    device = model_device(model)
    facts: Facts = {
        "seed": torch.initial_seed() if seed is None else seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "host": socket.gethostname(),
        "checkpoints": checkpoints,
        "logs": is_rank_0 or has_other_experiment_logger(),
    }
    batch_norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if batch_norms:
        facts["sync_batch_norm"] = all(isinstance(m, torch.nn.SyncBatchNorm) for m in batch_norms)
    return facts


def loader_facts(loader: object) -> Facts:
    facts: Facts = {}
    with contextlib.suppress(Exception):  # a user-defined sampler can raise any error
        facts["loader_seed"] = _loader_seed(loader)
    with contextlib.suppress(Exception):  # an iterable data set (stream) has no length
        facts["shard_examples"] = len(loader.sampler)  # type: ignore[attr-defined]
    return facts


def _loader_seed(loader: Any) -> int:
    sampler = loader.sampler
    if isinstance(sampler, torch.utils.data.RandomSampler):
        return torch.initial_seed() if sampler.generator is None else int(sampler.generator.initial_seed())
    return int(sampler.seed)  # a DistributedSampler has its shuffle seed in the attribute `seed`


def has_other_experiment_logger() -> bool:
    """Return whether the user's code in this process logs to MLflow or Weights & Biases."""
    mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
    with contextlib.suppress(Exception):  # MLflow is only partially imported, or its server is unreachable
        if mlflow is not None and mlflow.active_run() is not None:
            return True
    run = getattr(wandb, "run", None)
    return run is not None and not getattr(run, "disabled", False)


def parallelism(model: torch.nn.Module) -> str:
    """Return "fsdp", "ddp" or "other"; "other" also for the inner module of a DDP model."""
    if is_fully_sharded(model):
        return "fsdp"
    if any(isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in model.modules()):
        return "ddp"
    return "other"


def describe_ranks(parallel: str, backend: str, by_rank: Sequence[Mapping[str, Any] | None]) -> str:
    """Return the value of `contract.TAG_RANKS`; a list that is too long for a tag is truncated."""
    length = len(by_rank)
    while True:
        text = _ranks_json(parallel, backend, by_rank, length)
        if len(text) <= MAX_VALUE_CHARS or length == 0:
            return text
        length //= 2


def _ranks_json(parallel: str, backend: str, by_rank: Sequence[Mapping[str, Any] | None], length: int) -> str:
    names = sorted({name for facts in by_rank if facts for name in facts})
    combined: dict[str, Any] = {}
    for name in names:
        values = [facts.get(name) if facts else None for facts in by_rank]
        if all(v == values[0] and type(v) is type(values[0]) for v in values):
            combined[name] = {"same": values[0]}
        else:
            combined[name] = {"by_rank": values if len(values) <= length else [*values[:length], "..."]}
    return json.dumps({"world_size": len(by_rank), "parallel": parallel, "backend": backend, "facts": combined})


def global_batch_size(by_rank: Sequence[Mapping[str, Any] | None]) -> int | None:
    """Return all ranks' examples per step; a rank with unknown batch size counts with the mean of the other ranks."""
    batch_sizes = [int(facts["batch_size"]) for facts in by_rank if facts and facts.get("batch_size")]
    return round(sum(batch_sizes) / len(batch_sizes) * len(by_rank)) if batch_sizes else None
