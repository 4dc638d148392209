"""Observes calls of `torch.autograd.backward`, with which a loss starts its backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from advisor_pytorch.steps.patches import Patches

Listener = Callable[[torch.Tensor], None]
"""Function that is called with each loss before its backward pass. The function must not raise errors."""

patches: Patches[Listener] = Patches(lambda: patches.replace(torch.autograd, "backward", _observe_backward))


def _observe_backward(original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, torch.Tensor):
            for listener in list(patches.listeners):
                listener(tensors)
        return original(tensors, *args, **kwargs)

    return backward
