"""Observes calls of `torch.autograd.backward`, which start the backward pass of a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from advisor_pytorch.steps.patches import FunctionPatches

LossListener = Callable[[torch.Tensor], None]
"""Function that receives each loss before its backward pass. The listener function must not raise errors."""

backward_patches: FunctionPatches[LossListener] = FunctionPatches(
    lambda: backward_patches.replace(torch.autograd, "backward", _wrap_backward)
)


def _wrap_backward(original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, torch.Tensor):
            for listener in list(backward_patches.listeners):
                listener(tensors)
        return original(tensors, *args, **kwargs)

    return backward
