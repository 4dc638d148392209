"""Observes functions of PyTorch by replacing them with wrappers for as long as at least one listener is registered:
`torch.autograd.backward`, `GradScaler.step`, `clip_grad_norm_` and `clip_grad_value_`.

Most code has imported the clipping functions by name before we start to observe, so replacing them in PyTorch's module is not
enough. `clip_grad_norm_` looks up two helper functions in its module at each call; we wrap both, and read the norm from them.
`clip_grad_value_` has no helpers, and `clip_grad_norm_` has none before PyTorch 2.6. Both are thin wrappers, however, that call
an inner function with gradients disabled. We replace this inner function in the closure, which all importers share.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

Listener = TypeVar("Listener")


class FunctionPatches(Generic[Listener]):
    """The replaced functions, whose wrappers call all `listeners`; listeners must not raise errors."""

    def __init__(self, install: Callable[[], None]) -> None:
        """install: function that calls `replace` for each function that needs a wrapper."""
        self._install = install
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.listeners: list[Listener] = []

    def add_listener(self, listener: Listener) -> None:
        if not self.listeners:
            self._install()
        self.listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners:
            self._replaced = [entry for entry in reversed(self._replaced) if not self._restore_original(*entry)]

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `wrap(owner.name)`, unless our wrapper is still in place."""
        if any(one is owner and known == name for one, known, *_ in self._replaced):
            return
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)
        self._replaced.append((owner, name, original, wrapper))

    @staticmethod
    def _restore_original(owner: Any, name: str, original: Any, wrapper: Any) -> bool:
        """Restore the original function; return False if another library has wrapped our wrapper."""
        if getattr(owner, name) is not wrapper:
            return False
        setattr(owner, name, original)
        return True


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


ScalerListener = Callable[[torch.amp.GradScaler, torch.optim.Optimizer, bool], None]
"""Function called before (True) and after (False) each step of a gradient scaler, even if it is disabled."""

scaler_patches: FunctionPatches[ScalerListener] = FunctionPatches(
    lambda: scaler_patches.replace(torch.amp.GradScaler, "step", _observe_step)
)


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    states: Any = getattr(scaler, "_per_optimizer_states", {})
    return getattr(states[id(optimizer)].get("stage"), "name", "") != "READY" if id(optimizer) in states else False


def _observe_step(original: Any) -> Any:
    def step(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        listeners = list(scaler_patches.listeners)
        for listener in listeners:
            listener(self, optimizer, True)
        result = original(self, optimizer, *args, **kwargs)
        for listener in listeners:
            listener(self, optimizer, False)
        return result

    step.__doc__ = original.__doc__
    return step


class GradientClipping(NamedTuple):
    """A call that is about to clip gradients; the gradients are still unchanged."""

    parameters: Sequence[torch.Tensor]
    limit: float
    by: Literal["norm", "value"]
    norm: torch.Tensor | None = None
    """Total gradient norm that is compared with the clipping threshold; None if unknown."""
    is_l2: bool = False
    """Whether `norm` is an L2 norm."""


ClippingListener = Callable[[GradientClipping], None]
"""Function called before each clipping of gradients."""

_last_total_norm: tuple[weakref.ref[torch.Tensor], float] | None = None
"""Latest total gradient norm that PyTorch's helper function returned (not kept alive), and the order of this norm."""


def _install_wrappers() -> None:
    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        clipping_patches.replace(clip_grad, "_get_total_norm", _wrap_get_total_norm)
        clipping_patches.replace(clip_grad, "_clip_grads_with_norm_", _observe_norm)
        clipping_patches.replace(utils, "clip_grads_with_norm_", _observe_norm)
    else:
        _replace_in_closure(clip_grad.clip_grad_norm_, lambda original: _observe_limit(original, "norm"))
    _replace_in_closure(clip_grad.clip_grad_value_, lambda original: _observe_limit(original, "value"))


clipping_patches: FunctionPatches[ClippingListener] = FunctionPatches(_install_wrappers)


def _replace_in_closure(function: Any, wrap: Callable[[Any], Any]) -> None:
    for cell in function.__closure__ or ():
        if getattr(cell.cell_contents, "__name__", None) == function.__name__:
            clipping_patches.replace(cell, "cell_contents", wrap)
            return


def _notify_listeners(clipping: GradientClipping) -> None:
    for listener in list(clipping_patches.listeners):
        listener(clipping)


def _as_list(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _wrap_get_total_norm(original: Any) -> Any:
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        global _last_total_norm  # noqa: PLW0603 - as global as the patched functions
        total: torch.Tensor = original(tensors, norm_type, *args, **kwargs)
        _last_total_norm = weakref.ref(total), float(norm_type)
        return total

    return get_total_norm


def _observe_norm(original: Any) -> Any:
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: Any = None) -> None:
        parameters = _as_list(parameters)
        is_l2 = _last_total_norm is not None and _last_total_norm[0]() is total_norm and _last_total_norm[1] == 2.0
        _notify_listeners(GradientClipping(parameters, float(max_norm), "norm", total_norm, is_l2))
        original(parameters, max_norm, total_norm, foreach)

    return clip_grads_with_norm_


def _observe_limit(original: Any, by: Literal["norm", "value"]) -> Any:
    name = "max_norm" if by == "norm" else "clip_value"

    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _as_list(parameters)
        if (limit := args[0] if args else kwargs.get(name)) is not None:
            _notify_listeners(GradientClipping(parameters, float(limit), by))
        return original(parameters, *args, **kwargs)

    clip.__name__ = original.__name__  # `_replace_in_closure` finds the inner function by this name
    return clip
