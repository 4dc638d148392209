"""An exact copy of the training state, kept in host memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from advisor_pytorch.checkpoints.state import Stateful, random_states, restore_random_states


class TrainingSnapshot:
    """Copy of the current states of the model, the optimizers, the random generators and the objects in `also`.

    Tensors are copied to host memory, so that the copy uses no device memory. `restore` writes into the original tensor
    objects, because other code or compiled graphs may refer to them. `restore` removes state that the copied objects have
    gained since the copy.
    """

    def __init__(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], also: Sequence[Stateful] = ()
    ) -> None:
        """Errors raised by the objects in `also` propagate."""
        self._optimizers, self._also = optimizers, also
        modules = list(model.modules())
        self._modes = [(m, m.training) for m in modules]
        self._buffers = [(m, dict(m._buffers)) for m in modules]
        tensors = [*model.parameters(), *model.buffers()]
        trained = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        own = {id(t): t for t in [*tensors, *trained]}.values()
        self._gradients = [(t, t.grad) for t in own if t.is_leaf]
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for tensor in [*own, *(g for _, g in self._gradients if g is not None)]:
            self._copy_tensor(tensor)
        self._groups = [[self._copy_state({**g}) for g in o.param_groups] for o in optimizers]
        self._states = [{p: self._copy_state(state) for p, state in o.state.items()} for o in optimizers]
        self._others = [copy.deepcopy(one.state_dict()) for one in also]
        self._random = random_states()

    def restore(self) -> None:
        """Restore all objects to their states at the time of the copy."""
        for module, mode in self._modes:
            module.training = mode
        for module, buffers in self._buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        for tensor, gradient in self._gradients:
            tensor.grad = gradient
        with torch.no_grad():
            for tensor, value in self._values.values():
                tensor.copy_(value)
        for optimizer, groups, states in zip(self._optimizers, self._groups, self._states, strict=True):
            for group, before in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(_copy_containers(before))
            optimizer.state.clear()
            optimizer.state.update({p: _copy_containers(state) for p, state in states.items()})
        for one, state in zip(self._also, self._others, strict=True):
            one.load_state_dict(copy.deepcopy(state))
        restore_random_states(self._random)

    def _copy_tensor(self, tensor: torch.Tensor) -> None:
        self._values.setdefault(id(tensor), (tensor, tensor.detach().to("cpu", copy=True)))

    def _copy_state(self, value: Any) -> Any:
        """Store copies of the tensors in `value`, and return `value` in new containers that hold the original tensors."""
        if isinstance(value, torch.Tensor):
            self._copy_tensor(value)
            return value
        if isinstance(value, dict):
            return {k: self._copy_state(v) for k, v in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self._copy_state(v) for v in value)
        return value


def _copy_containers(value: Any) -> Any:
    """Return a copy of the value with new containers, so that changes during the training do not affect the copy."""
    if isinstance(value, dict):
        return {k: _copy_containers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copy_containers(v) for v in value]
    return value
