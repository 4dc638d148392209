"""Observes `torch.autograd.backward`, through which a loss starts its backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from advisor_pytorch.steps.patches import Patches

Listener = Callable[[torch.Tensor], None]
"""Function called with a loss before its backward pass. It must not raise errors."""

patches: Patches[Listener] = Patches(lambda: patches.replace(torch.autograd, "backward", _observe_backward))


def _observe_backward(original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, torch.Tensor):
            for listener in list(patches.listeners):
                listener(tensors)
        return original(tensors, *args, **kwargs)

    return backward
