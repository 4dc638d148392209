"""Detects steps of optimizers that are not captured, such as a new optimizer for the same parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class UncapturedOptimizers:
    """Calls `follow(k, optimizer)` when an optimizer that is not captured first changes parameters of captured optimizer k.

    If a step runs inside a step of another optimizer, as in wrappers such as SAM, both are ignored.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        follow: Callable[[int, torch.optim.Optimizer], None],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """optimizers: list of the captured optimizers, which `follow` updates. guard: wraps each hook to catch errors."""
        self._optimizers, self._follow = optimizers, follow
        self.steps = 0
        """Number of steps of unknown optimizers since the last step of a captured optimizer."""
        self.name = ""
        """Class name of the unknown optimizer that made the latest step."""
        self._own_steps = 0
        self._begun: dict[int, int] = {}
        self._unrelated: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.read_captured_optimizers()
        self._handles = [
            register_optimizer_step_pre_hook(guard(self._before_step)),
            register_optimizer_step_post_hook(guard(self._after_step)),
        ]

    def read_captured_optimizers(self) -> None:
        self._own = {id(optimizer) for optimizer in self._optimizers}
        self.is_stepping = False
        self._own_steps += 1
        self._unrelated.clear()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) in self._own:
            self.is_stepping = True
            self._own_steps += 1
        elif not self.is_stepping:
            self._begun[id(optimizer)] = self._own_steps

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) in self._own:
            self.is_stepping = False
            self.steps = 0
        elif not self.is_stepping and self._begun.pop(id(optimizer), None) == self._own_steps:
            self.steps += 1
            self.name = type(optimizer).__name__
            if (k := self._first_with_common_parameter(optimizer)) is not None:
                self.steps = 0
                self._follow(k, optimizer)

    def _first_with_common_parameter(self, optimizer: torch.optim.Optimizer) -> int | None:
        if optimizer in self._unrelated:
            return None
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for k, own in enumerate(self._optimizers):
            if any(id(p) in trained for group in own.param_groups for p in group["params"]):
                return k
        self._unrelated.add(optimizer)
        return None
