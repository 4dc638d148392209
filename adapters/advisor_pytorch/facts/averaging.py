"""Averages of the model's weights along the training, found beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import swa_utils

_NAMES = re.compile(
    r"(EMA|Ema)(?![a-z])|MovingAverage|Averaged?(Model|Weights?)|WeightAverag|Polyak|(^|_)SWA(?![A-Z]*LR)|(^|_)Swa[A-Z]"
)
_KINDS = (("ema|exponential|movingaverage", "ema"), ("swa|stochasticweight", "swa"))


def classes() -> list[type]:
    """The classes in this process that are called an average of weights, PyTorch's own among them."""
    found = [c for base in (object, nn.Module) for c in base.__subclasses__() if _NAMES.search(c.__name__)]
    return list({c for base in [*found, swa_utils.AveragedModel] for c in _with_subclasses(base)})


def describe(candidates: Iterable[Any], model: nn.Module) -> dict[str, str] | None:
    """The value of `contract.TAG_AVERAGING`: the first of `candidates` that holds tensors of the model's shapes, or None."""
    own = {tuple(p.shape) for p in model.parameters()}
    count = sum(1 for p in model.parameters() if p.requires_grad)
    for one in candidates:
        shapes = [tuple(t.shape) for t in _tensors(one)]
        if own and own <= set(shapes) and len(shapes) >= count and not _is_part(one, model):
            return {"class": type(one).__name__, "kind": _kind(one)}
    return None


def _kind(one: Any) -> str:
    if isinstance(one, swa_utils.AveragedModel):
        given = one.multi_avg_fn or one.avg_fn
        name = getattr(given, "__qualname__", "swa" if given is None else "")  # without one it takes the mean of all
    else:
        name = ""
    text = f"{name} {type(one).__name__}".lower().replace("_", "")
    return next((kind for pattern, kind in _KINDS if re.search(pattern, text)), "other")


def _tensors(one: Any) -> Iterator[torch.Tensor]:
    """The tensors that it holds: a module's, or those of its attributes and of lists and mappings in them."""
    if isinstance(one, nn.Module):
        yield from one.parameters()
        yield from one.buffers()
        return
    for value in vars(one).values() if hasattr(one, "__dict__") else ():
        if isinstance(value, nn.Module):
            yield from value.parameters()
            continue
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def _is_part(one: Any, model: nn.Module) -> bool:
    """Whether it is the model, or holds the very parameters that are trained and no copies of them."""
    trained = {id(p) for p in model.parameters()}
    return all(id(t) in trained for t in _tensors(one))


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = cls.__subclasses__()
    for sub in subclasses:
        yield from _with_subclasses(sub)
