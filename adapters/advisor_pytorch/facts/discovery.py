"""Finds what a training holds beside its model and optimizer: schedulers, and averages of the weights.

One pass of Python's garbage collector over all objects, about 0.1 µs for each: 30 ms in a process with Transformers loaded; two
where a scheduler's attributes were ever asked for as a whole, as its `state_dict` does. They are made in the writer thread, once
when the first steps are through and once at the end, and keep nothing that they find.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import lr_scheduler

from advisor_pytorch.facts import averaging, schedules


class Discovery(NamedTuple):
    """The values of `contract.TAG_SCHEDULE` and `contract.TAG_AVERAGING`; None for what was not found."""

    schedule: dict[str, str] | None
    averaging: dict[str, str] | None


def discover(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], steps: int | None) -> Discovery:
    """Find them; `steps` are the optimizer steps planned."""
    held = [inner for o in optimizers if isinstance(inner := getattr(o, "optimizer", None), torch.optim.Optimizer)]
    sought = {id(o): o for o in [*optimizers, *held]}  # Accelerate's optimizer holds the one that the scheduler knows
    averages = averaging.classes()
    near = gc.get_referrers(*sought.values(), *averages)
    owners = _owners([held for held in near if type(held) is dict and id(held.get("optimizer")) in sought])
    found = [o for o in (*near, *owners) if is_scheduler(o) and id(getattr(o, "optimizer", None)) in sought]
    kinds = tuple(averages)
    average = averaging.describe((o for o in near if isinstance(o, kinds)), model)
    return Discovery(schedules.describe(found, steps), average)


def _owners(attributes: Sequence[dict[str, Any]]) -> list[Any]:
    """The objects whose `__dict__` these are: once it was asked for, they are seen through it only; a module's has no owner."""
    of_objects = [held for held in attributes if "__builtins__" not in held]
    return gc.get_referrers(*of_objects) if of_objects else []


def is_scheduler(thing: Any) -> bool:
    """Whether it sets learning rates: PyTorch's, or of a class that is called a scheduler."""
    if isinstance(thing, lr_scheduler.LRScheduler):
        return True
    name = type(thing).__name__.lower()
    return (
        ("sched" in name or "warmup" in name) and callable(getattr(thing, "step", None)) and hasattr(thing, "optimizer")
    )
