"""Observes calls of `torch.amp.GradScaler.step`, which skips the optimizer's step if gradients overflowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor_pytorch.steps.patches import FunctionPatches

Listener = Callable[[torch.amp.GradScaler, torch.optim.Optimizer, bool], None]
"""Function that is called before (True) and after (False) each step of a gradient scaler, even if the scaler is disabled. The
listener function must not raise errors."""

patches: FunctionPatches[Listener] = FunctionPatches(lambda: patches.replace(torch.amp.GradScaler, "step", _observe_step))


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `unscale_` was already called for the next step of the optimizer."""
    states: Any = getattr(scaler, "_per_optimizer_states", {})
    return getattr(states[id(optimizer)].get("stage"), "name", "") != "READY" if id(optimizer) in states else False


def _observe_step(original: Any) -> Any:
    def step(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        listeners = list(patches.listeners)
        for listener in listeners:
            listener(self, optimizer, True)
        made = original(self, optimizer, *args, **kwargs)
        for listener in listeners:
            listener(self, optimizer, False)
        return made

    step.__doc__ = original.__doc__
    return step
