"""Detects whether a training averages its weights (EMA, SWA)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import swa_utils

_AVERAGING_NAMES = re.compile(
    r"(EMA|Ema)(?![a-z])|MovingAverage|Averaged?(Model|Weights?)|WeightAverag|Polyak|(^|_)SWA(?![A-Z]*LR)|(^|_)Swa[A-Z]"
)
_AVERAGING_KIND_PATTERNS = (("ema|exponential|movingaverage", "ema"), ("swa|stochasticweight", "swa"))


def loaded_averaging_classes() -> list[type]:
    """Return all loaded classes whose names suggest weight averaging, and their subclasses."""
    bases = [c for base in (object, nn.Module) for c in base.__subclasses__() if _AVERAGING_NAMES.search(c.__name__)]
    return list({c for base in [*bases, swa_utils.AveragedModel] for c in _class_and_subclasses(base)})


def describe_averaging(candidates: Iterable[Any], model: nn.Module) -> dict[str, str] | None:
    """Return the value of `contract.TAG_AVERAGING` for the first candidate object whose tensors have the same shapes as the
    model's; None if there is none."""
    own = {tuple(p.shape) for p in model.parameters()}
    count = sum(1 for p in model.parameters() if p.requires_grad)
    for one in candidates:
        shapes = [tuple(t.shape) for t in _tensors_in_state(one)]
        if own and own <= set(shapes) and len(shapes) >= count and not _is_part_of_model(one, model):
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
    """Yield the tensors in a module's state; for other objects, yield the tensors in their attributes, also inside lists and
    mappings."""
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
    """Return whether all tensors of the candidate object are the trained parameters themselves, rather than copies of the
    parameters."""
    trained = {id(p) for p in model.parameters()}
    return all(id(t) in trained for t in _tensors_in_state(candidate))


def _class_and_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = cls.__subclasses__()
    for sub in subclasses:
        yield from _class_and_subclasses(sub)
