"""Listens to `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, which change the gradient before the optimizer's hook.

`clip_grad_norm_` looks up two helpers in its own module when it is called. They are wrapped there, so that also those who
wrote `from torch.nn.utils import clip_grad_norm_` long before are heard. `clip_grad_value_`, and `clip_grad_norm_` before
PyTorch 2.6, have no such helpers: they are wrapped themselves, and heard only where they are called as
`torch.nn.utils.clip_grad_...`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

Listener = Callable[[Sequence[torch.Tensor], "float | None", "torch.Tensor | None"], None]
"""Called just before a clipping with its parameters, its threshold (None: by value), and their total L2 norm where it is known."""

_listeners: list[Listener] = []
_originals: dict[tuple[Any, str], Any] = {}
_l2_norm: torch.Tensor | None = None
"""The last total norm that PyTorch's helper gave, if it was an L2 norm: people clip by other norms as well."""


def listen(listener: Listener) -> None:
    """Have `listener` called until `ignore`. It must not raise."""
    if not _listeners:
        _wrap()
    _listeners.append(listener)


def ignore(listener: Listener) -> None:
    """Undo `listen`; the last one to go puts PyTorch's own functions back."""
    global _l2_norm  # noqa: PLW0603 - as global as the functions that are wrapped
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        _l2_norm = None
        for (module, name), (original, wrapper) in _originals.items():
            if getattr(module, name) is wrapper:
                setattr(module, name, original)
        _originals.clear()


def _wrap() -> None:
    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        _replace(clip_grad, "_get_total_norm", _remembering)
        _replace(clip_grad, "_clip_grads_with_norm_", _telling_norm)
        _replace(utils, "clip_grads_with_norm_", _telling_norm)
    else:
        _replace(clip_grad, "clip_grad_norm_", _telling_threshold)
        _replace(utils, "clip_grad_norm_", _telling_threshold)
    _replace(clip_grad, "clip_grad_value_", _telling_value)
    _replace(utils, "clip_grad_value_", _telling_value)


def _replace(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(module, name)
    wrapper = wrap(original)
    _originals[module, name] = (original, wrapper)
    setattr(module, name, wrapper)


def _tell(parameters: Sequence[torch.Tensor], threshold: float | None, norm: torch.Tensor | None) -> None:
    for listener in list(_listeners):
        listener(parameters, threshold, norm)


def _as_list(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _remembering(original: Any) -> Any:
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        global _l2_norm  # noqa: PLW0603
        total: torch.Tensor = original(tensors, norm_type, *args, **kwargs)
        _l2_norm = total if float(norm_type) == 2.0 else None
        return total

    return get_total_norm


def _telling_norm(original: Any) -> Any:
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: Any = None) -> None:
        given = _as_list(parameters)
        _tell(given, max_norm, total_norm if total_norm is _l2_norm else None)
        original(given, max_norm, total_norm, foreach)

    return clip_grads_with_norm_


def _telling_threshold(original: Any) -> Any:
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = _as_list(parameters)
        _tell(given, max_norm, None)
        total: torch.Tensor = original(given, max_norm, *args, **kwargs)
        return total

    return clip_grad_norm_


def _telling_value(original: Any) -> Any:
    def clip_grad_value_(parameters: Any, *args: Any, **kwargs: Any) -> None:
        given = _as_list(parameters)
        _tell(given, None, None)
        original(given, *args, **kwargs)

    return clip_grad_value_
