"""Observes `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, which change the gradients before the optimizer's hook
runs.

Most code has imported these functions by name before we start to observe, so replacing them in PyTorch's module is not enough.
`clip_grad_norm_` looks up two helper functions in its module at each call. We wrap both helper functions of `clip_grad_norm_`,
and also read the computed norm from them. `clip_grad_value_` has no helper functions, and before PyTorch 2.6 `clip_grad_norm_`
had none either. However, `clip_grad_norm_` and `clip_grad_value_` are thin wrappers that call an inner function with gradients
disabled. We replace the inner function in the wrapper's closure, which is the same object for all code that imported the
wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

from advisor_pytorch.steps.patches import FunctionPatches


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

_last_total_norm: tuple[torch.Tensor, float] | None = None
"""Pair of the latest total gradient norm that PyTorch's helper function returned and the order of this norm; None before the
first such norm."""


def listen_to_clipping(listener: ClippingListener) -> None:
    """Call `listener` before each clipping of gradients, until the listener is removed. The listener must not raise an error."""
    _patches.listen(listener)


def stop_listening_to_clipping(listener: ClippingListener) -> None:
    global _last_total_norm  # noqa: PLW0603 - as global as the patched functions
    _patches.ignore(listener)
    if not _patches.listeners:
        _last_total_norm = None


def _install_wrappers() -> None:
    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        _patches.replace(clip_grad, "_get_total_norm", _wrap_get_total_norm)
        _patches.replace(clip_grad, "_clip_grads_with_norm_", _observe_norm)
        _patches.replace(utils, "clip_grads_with_norm_", _observe_norm)
    else:
        _replace_in_closure(clip_grad.clip_grad_norm_, lambda original: _observe_limit(original, "norm"))
    _replace_in_closure(clip_grad.clip_grad_value_, lambda original: _observe_limit(original, "value"))


_patches: FunctionPatches[ClippingListener] = FunctionPatches(_install_wrappers)


def _replace_in_closure(function: Any, wrap: Callable[[Any], Any]) -> None:
    """Wrap the inner function that a decorated function calls."""
    for cell in function.__closure__ or ():
        if getattr(cell.cell_contents, "__name__", None) == function.__name__:
            _patches.replace(cell, "cell_contents", wrap)
            return


def _notify_listeners(clipping: GradientClipping) -> None:
    for listener in list(_patches.listeners):
        listener(clipping)


def _as_list(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _wrap_get_total_norm(original: Any) -> Any:
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        global _last_total_norm  # noqa: PLW0603
        total: torch.Tensor = original(tensors, norm_type, *args, **kwargs)
        _last_total_norm = total, float(norm_type)
        return total

    return get_total_norm


def _observe_norm(original: Any) -> Any:
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: Any = None) -> None:
        parameters = _as_list(parameters)
        is_l2 = _last_total_norm is not None and _last_total_norm[0] is total_norm and _last_total_norm[1] == 2.0
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
