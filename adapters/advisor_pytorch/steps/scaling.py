"""Observe `torch.amp.GradScaler.step`, which skips an optimizer's step if its gradients overflowed."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from advisor_pytorch.steps.patches import Patches


class ScalerListener(Protocol):
    """Observes the steps of all gradient scalers, also disabled ones. Must not raise."""

    def scaler_begins(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Called before a scaler's step of any optimizer."""

    def scaler_ended(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Called after it."""


patches: Patches[ScalerListener] = Patches(lambda: patches.replace(torch.amp.GradScaler, "step", _observe_step))


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `unscale_` was called for the optimizer's next step; True if PyTorch no longer shows it."""
    states: Any = getattr(scaler, "_per_optimizer_states", {})
    return getattr(states[id(optimizer)].get("stage"), "name", "") != "READY" if id(optimizer) in states else False


def _observe_step(original: Any) -> Any:
    def step(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        listeners = list(patches.listeners)
        for listener in listeners:
            listener.scaler_begins(self, optimizer)
        made = original(self, optimizer, *args, **kwargs)
        for listener in listeners:
            listener.scaler_ended(self, optimizer)
        return made

    step.__doc__ = original.__doc__
    return step
