"""Observes the loss of each micro-batch when the Trainer passes it to Accelerate for the backward pass.

The observed loss is the loss that is minimised, whether the model, label smoothing, a custom loss or an overridden method
computes it. The observed loss is scaled so that the losses of a step's micro-batches add up to the loss of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

from advisor_pytorch.steps.patches import FunctionPatches

patches: FunctionPatches[Callable[[torch.Tensor], None]] = FunctionPatches(
    lambda: patches.replace(Accelerator, "backward", _observe_backward)
)


def _observe_backward(original: Any) -> Any:
    def backward(self: Accelerator, loss: Any, **kwargs: Any) -> Any:
        if isinstance(loss, torch.Tensor):
            for listener in list(patches.listeners):
                listener(loss)
        return original(self, loss, **kwargs)

    return backward
