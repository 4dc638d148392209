"""Finds the learning-rate schedulers and the averaged weights of a training run, so that the user need not pass them.

A search examines every object that Python's garbage collector tracks, each object once. The search takes about 0.1 µs per
object, which is 30 ms in a process that has imported Transformers. If some code has accessed the `__dict__` of a scheduler, as
`state_dict` does, a second pass over all objects is needed. The writer thread searches once after the first steps and once at
the end, and then drops its references to the objects.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import lr_scheduler

from advisor_pytorch.facts import averaging, schedules


class ScheduleAndAveraging(NamedTuple):
    """Values of the tags `contract.TAG_SCHEDULE` and `contract.TAG_AVERAGING`; a value is None if the search found no such
    object."""

    schedule: dict[str, str] | None
    averaging: dict[str, str] | None


def find_schedule_and_averaging(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], steps: int | None
) -> ScheduleAndAveraging:
    """Search this process for schedulers and averaged weights. steps: planned number of optimizer steps."""
    held = [inner for o in optimizers if isinstance(inner := getattr(o, "optimizer", None), torch.optim.Optimizer)]
    sought = {id(o): o for o in [*optimizers, *held]}  # Accelerate's scheduler refers to a wrapped optimizer
    averages = averaging.loaded_averaging_classes()
    near = gc.get_referrers(*sought.values(), *averages)
    owners = _objects_with_attributes([held for held in near if type(held) is dict and id(held.get("optimizer")) in sought])
    schedulers = [o for o in (*near, *owners) if is_scheduler(o) and id(getattr(o, "optimizer", None)) in sought]
    kinds = tuple(averages)
    average = averaging.describe_averaging((o for o in near if isinstance(o, kinds)), model)
    return ScheduleAndAveraging(schedules.describe_schedule(schedulers, steps), average)


def _objects_with_attributes(attributes: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the objects, other than modules, whose `__dict__` is in `attributes`; a single pass over all tracked objects
    cannot find them."""
    of_objects = [held for held in attributes if "__builtins__" not in held]
    return gc.get_referrers(*of_objects) if of_objects else []


def is_scheduler(thing: Any) -> bool:
    """Return whether the object is a PyTorch scheduler, or its class is named like a scheduler."""
    if isinstance(thing, lr_scheduler.LRScheduler):
        return True
    name = type(thing).__name__.lower()
    return ("sched" in name or "warmup" in name) and callable(getattr(thing, "step", None)) and hasattr(thing, "optimizer")
