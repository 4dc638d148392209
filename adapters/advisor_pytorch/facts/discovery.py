"""Finds the learning-rate schedulers and the averaged weights (EMA, SWA) of a training run, so that the user need not pass them.

A search examines every object that Python's garbage collector tracks, about 0.1 µs per object: 30 ms in a process that has
imported Transformers. If some code has accessed the `__dict__` of a scheduler, as `state_dict` does, a second pass is needed.
The writer thread searches once after the first steps and once at the end.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from advisor_pytorch.facts import schedules

_AVERAGING_NAMES = re.compile(
    r"(EMA|Ema)(?![a-z])|MovingAverage|Averaged?(Model|Weights?)|WeightAverag|Polyak|(^|_)SWA(?![A-Z]*LR)|(^|_)Swa[A-Z]"
)
_AVERAGING_KIND_PATTERNS = (("ema|exponential|movingaverage", "ema"), ("swa|stochasticweight", "swa"))


def loaded_averaging_classes() -> list[type]:
    bases = [c for base in (object, nn.Module) for c in base.__subclasses__() if _AVERAGING_NAMES.search(c.__name__)]
    return list({c for base in [*bases, swa_utils.AveragedModel] for c in _class_and_subclasses(base)})


def describe_averaging(candidates: Iterable[Any], model: nn.Module) -> dict[str, str] | None:
    """Describe the first candidate whose tensors have the same shapes as the model's."""
    model_shapes = {tuple(p.shape) for p in model.parameters()}
    trained_count = sum(1 for p in model.parameters() if p.requires_grad)
    for one in candidates:
        shapes = [tuple(t.shape) for t in _tensors_in_state(one)]
        if model_shapes and model_shapes <= set(shapes) and len(shapes) >= trained_count and not _is_part_of_model(one, model):
            return {"class": type(one).__name__, "kind": _averaging_kind(one)}
    return None


def _averaging_kind(candidate: Any) -> str:
    if isinstance(candidate, swa_utils.AveragedModel):
        function = candidate.multi_avg_fn or candidate.avg_fn
        name = getattr(function, "__qualname__", "swa" if function is None else "")  # without a function, an equal-weight mean
    else:
        name = ""
    text = f"{name} {type(candidate).__name__}".lower().replace("_", "")
    return next((kind for pattern, kind in _AVERAGING_KIND_PATTERNS if re.search(pattern, text)), "other")


def _tensors_in_state(candidate: Any) -> Iterator[torch.Tensor]:
    if isinstance(candidate, nn.Module):
        yield from candidate.parameters()
        yield from candidate.buffers()
        return
    for value in vars(candidate).values() if hasattr(candidate, "__dict__") else ():
        if isinstance(value, nn.Module):
            yield from value.parameters()
            continue
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def _is_part_of_model(candidate: Any, model: nn.Module) -> bool:
    trained = {id(p) for p in model.parameters()}
    return all(id(t) in trained for t in _tensors_in_state(candidate))


def _class_and_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = cls.__subclasses__()
    for sub in subclasses:
        yield from _class_and_subclasses(sub)


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
    averages = loaded_averaging_classes()
    near = gc.get_referrers(*sought.values(), *averages)
    attributes = [held for held in near if type(held) is dict and id(held.get("optimizer")) in sought]
    # A single pass over all tracked objects does not find objects whose `__dict__` was accessed.
    of_objects = [held for held in attributes if "__builtins__" not in held]
    owners = gc.get_referrers(*of_objects) if of_objects else []
    schedulers = [o for o in (*near, *owners) if is_scheduler(o) and id(getattr(o, "optimizer", None)) in sought]
    kinds = tuple(averages)
    average = describe_averaging((o for o in near if isinstance(o, kinds)), model)
    return ScheduleAndAveraging(schedules.describe_schedule(schedulers, steps), average)


def is_scheduler(thing: Any) -> bool:
    if isinstance(thing, lr_scheduler.LRScheduler):
        return True
    name = type(thing).__name__.lower()
    return ("sched" in name or "warmup" in name) and callable(getattr(thing, "step", None)) and hasattr(thing, "optimizer")
