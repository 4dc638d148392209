"""Hears the loss of every micro-batch where the Trainer hands it to Accelerate for the backward pass.

There it is what is trained on, whatever made it: the model, label smoothing, a loss function of the user's, an overridden
`compute_loss`; and scaled so that the micro-batches of an optimizer step add up to the loss of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

Listener = Callable[[torch.Tensor], None]

_listeners: list[Listener] = []
_original: Any = None


def listen(listener: Listener) -> None:
    """Have `listener` called with every loss until `ignore`. It must not raise."""
    global _original  # noqa: PLW0603 - as global as the method that is wrapped
    if _original is None:
        _original = Accelerator.backward
        Accelerator.backward = _backward
    _listeners.append(listener)


def ignore(listener: Listener) -> None:
    """Undo `listen`; the last one to go puts Accelerate's own method back."""
    global _original
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and _original is not None and Accelerator.backward is _backward:
        Accelerator.backward, _original = _original, None


def _backward(self: Accelerator, loss: Any, **kwargs: Any) -> Any:
    if isinstance(loss, torch.Tensor):
        for listener in list(_listeners):
            listener(loss)
    return _original(self, loss, **kwargs)
