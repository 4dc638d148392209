"""Listens to `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, which change the gradient before the optimizer's hook.

Most people wrote `from torch.nn.utils import clip_grad_norm_` long before anybody listens, so it is not enough to replace these
functions. `clip_grad_norm_` looks up two helpers in its own module when it is called: they are wrapped there, which also gives the
norm that it has computed. `clip_grad_value_`, and `clip_grad_norm_` before PyTorch 2.6, have no such helpers, but are themselves
thin wrappers that turn gradients off: what they hold inside is replaced, so that everybody who has them has the listening one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad


class Clipping(NamedTuple):
    """A clipping that is about to happen: the last moment at which the gradient is whole."""

    parameters: Sequence[torch.Tensor]
    limit: float
    by: Literal["norm", "value"]
    norm: torch.Tensor | None = None
    """The norm of all their gradients together that is about to be compared with the limit, where it is known."""
    is_l2: bool = False
    """Whether that is the L2 norm: people clip by other norms as well."""


Listener = Callable[[Clipping], None]

_listeners: list[Listener] = []
_undo: list[Callable[[], None]] = []
_norm_type: tuple[torch.Tensor, float] | None = None
"""The last total norm that PyTorch's helper gave, and its kind."""


def listen(listener: Listener) -> None:
    """Have `listener` called until `ignore`. It must not raise."""
    if not _listeners:
        _wrap()
    _listeners.append(listener)


def ignore(listener: Listener) -> None:
    """Undo `listen`; the last one to go puts PyTorch's own functions back."""
    global _norm_type  # noqa: PLW0603 - as global as the functions that are wrapped
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        _norm_type = None
        while _undo:
            _undo.pop()()


def _wrap() -> None:
    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        _replace(clip_grad, "_get_total_norm", _remembering)
        _replace(clip_grad, "_clip_grads_with_norm_", _telling_norm)
        _replace(utils, "clip_grads_with_norm_", _telling_norm)
    else:
        _replace_inside(clip_grad.clip_grad_norm_, _telling_limit)
    _replace_inside(clip_grad.clip_grad_value_, _telling_value)


def _replace(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(module, name)
    wrapper = wrap(original)
    setattr(module, name, wrapper)

    def undo() -> None:
        if getattr(module, name) is wrapper:
            setattr(module, name, original)

    _undo.append(undo)


def _replace_inside(function: Any, wrap: Callable[[Any], Any]) -> None:
    """Wrap what a decorated function calls."""
    for cell in function.__closure__ or ():
        original = cell.cell_contents
        if getattr(original, "__name__", None) == function.__name__:
            cell.cell_contents = wrapper = wrap(original)
            _undo.append(lambda cell=cell, original=original, wrapper=wrapper: _restore(cell, original, wrapper))  # type: ignore[misc]
            return


def _restore(cell: CellType, original: Any, wrapper: Any) -> None:
    if cell.cell_contents is wrapper:
        cell.cell_contents = original


def _tell(clipping: Clipping) -> None:
    for listener in list(_listeners):
        listener(clipping)


def _as_list(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _remembering(original: Any) -> Any:
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        global _norm_type  # noqa: PLW0603
        total: torch.Tensor = original(tensors, norm_type, *args, **kwargs)
        _norm_type = total, float(norm_type)
        return total

    return get_total_norm


def _telling_norm(original: Any) -> Any:
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: Any = None) -> None:
        given = _as_list(parameters)
        is_l2 = _norm_type is not None and _norm_type[0] is total_norm and _norm_type[1] == 2.0
        _tell(Clipping(given, float(max_norm), "norm", total_norm, is_l2))
        original(given, max_norm, total_norm, foreach)

    return clip_grads_with_norm_


def _telling_limit(original: Any) -> Any:
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = _as_list(parameters)
        _tell(Clipping(given, float(max_norm), "norm"))
        total: torch.Tensor = original(given, max_norm, *args, **kwargs)
        return total

    return clip_grad_norm_


def _telling_value(original: Any) -> Any:
    def clip_grad_value_(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        given = _as_list(parameters)
        _tell(Clipping(given, float(clip_value), "value"))
        original(given, clip_value, *args, **kwargs)

    return clip_grad_value_
