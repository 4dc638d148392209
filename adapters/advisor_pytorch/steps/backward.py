"""Observes calls of `torch.autograd.backward`, which start the backward pass of a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from advisor_pytorch.steps.patches import FunctionPatches

Listener = Callable[[torch.Tensor], None]
"""Function that receives each loss before its backward pass. The listener function must not raise errors."""

patches: FunctionPatches[Listener] = FunctionPatches(
    lambda: patches.replace(torch.autograd, "backward", _observe_backward)
)


def _observe_backward(original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, torch.Tensor):
            for listener in list(patches.listeners):
                listener(tensors)
        return original(tensors, *args, **kwargs)

    return backward
