"""Listens to `torch.amp.GradScaler.step`, which leaves an optimizer's step out when its gradients overflowed."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class ScalerListener(Protocol):
    """What it must have to be told. Must not raise."""

    def scaler_begins(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Called before a scaler's step of any optimizer, also where the scaler is disabled."""

    def scaler_ended(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Called after it."""


_listeners: list[ScalerListener] = []
_replaced: list[tuple[Any, Any]] = []
"""PyTorch's function and the one in its place, while anybody listens."""


def listen(listener: ScalerListener) -> None:
    """Have `listener` called until `ignore`."""
    if not _listeners:
        original = torch.amp.GradScaler.step
        torch.amp.GradScaler.step = wrapper = _telling(original)  # type: ignore[method-assign]
        _replaced.append((original, wrapper))
    _listeners.append(listener)


def ignore(listener: ScalerListener) -> None:
    """Undo `listen`; the last one to go puts PyTorch's own function back."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and _replaced:
        original, wrapper = _replaced.pop()
        if torch.amp.GradScaler.step is wrapper:
            torch.amp.GradScaler.step = original  # type: ignore[method-assign]


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether `unscale_` was called for the optimizer's next step; True where PyTorch no longer says."""
    states: Any = getattr(scaler, "_per_optimizer_states", {})
    return getattr(states[id(optimizer)].get("stage"), "name", "") != "READY" if id(optimizer) in states else False


def _telling(original: Any) -> Any:
    def step(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        listeners = list(_listeners)
        for listener in listeners:
            listener.scaler_begins(self, optimizer)
        made = original(self, optimizer, *args, **kwargs)
        for listener in listeners:
            listener.scaler_ended(self, optimizer)
        return made

    step.__doc__ = original.__doc__
    return step
