"""Computes norms of gradients, and finds the optimizers whose gradients a clipping call changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

NormFunction = Callable[[Sequence[torch.Tensor]], "torch.Tensor | None"]
"""Function that returns the total L2 norm of the parameters' gradients as a scalar tensor; None if there are no gradients."""


def gradient_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the total gradient norm of unsharded parameters."""
    return global_norm([gradient for p in parameters if (gradient := p.grad) is not None])


class PerParameterGradientNorm:
    """Computes the same norm as `gradient_norm`, and keeps the norm of each parameter's gradient."""

    parts: torch.Tensor | None = None
    """Norm of each parameter's gradient in the last call, in the order of the parameters; None if there were no gradients."""

    def __call__(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the total gradient norm of the parameters, which must be unsharded."""
        gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
        self.parts = _norms_of_tensors(gradients) if gradients else None
        return None if self.parts is None else _total_of_norms(self.parts)


def global_norm(gradients: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the total L2 norm as a scalar tensor on the device of the first gradient; None if there are no gradients.
    Computing the norm never waits for the device."""
    return _total_of_norms(_norms_of_tensors(gradients)) if gradients else None


def _total_of_norms(norms: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = torch.linalg.vector_norm(norms)
    return total


@torch.no_grad()
def _norms_of_tensors(gradients: list[torch.Tensor]) -> torch.Tensor:
    try:
        narrow = gradients[0].dtype in (torch.float16, torch.bfloat16)  # squares of gradients lose precision in 16-bit dtypes
        return torch.stack(list(torch._foreach_norm(gradients, 2.0, dtype=torch.float32 if narrow else None)))
    except (RuntimeError, TypeError):  # sparse gradients, several devices, or dtypes that the fused kernel rejects
        return _norms_one_by_one(gradients)


def _norms_one_by_one(gradients: list[torch.Tensor]) -> torch.Tensor:
    parts = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    wide = [torch.float64 if p.dtype == torch.float64 else torch.float32 for p in parts]
    norms = [torch.linalg.vector_norm(p, dtype=dtype) for p, dtype in zip(parts, wide, strict=True)]
    return torch.stack([n.to(norms[0].device) for n in norms])


class ClippedOptimizers(NamedTuple):
    """The optimizers that train the parameters passed to a clipping call."""

    optimizers: tuple[int, ...]
    """Indices of the optimizers that train at least one parameter in the list."""
    is_exact: bool
    """Whether the list contains exactly the parameters that these optimizers train."""


class ClippedOptimizersFinder:
    """Finds the optimizers whose gradients a clipping call changes; the result is cached per list of parameters."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: dict[tuple[int, ...], ClippedOptimizers] = {}

    def scope_of(self, parameters: Sequence[torch.Tensor]) -> ClippedOptimizers:
        """Return the optimizers that train the parameters in the list."""
        if not parameters:
            return ClippedOptimizers((), False)
        groups = (len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups)
        key = (id(parameters[0]), id(parameters[-1]), len(parameters), sum(groups))
        if key not in self._known:
            self._known[key] = self._find_scope(parameters)
        return self._known[key]

    def _find_scope(self, parameters: Sequence[torch.Tensor]) -> ClippedOptimizers:
        ids = {id(p) for p in parameters}
        trained = [
            {id(p): p.requires_grad for group in optimizer.param_groups for p in group["params"]}
            for optimizer in self._optimizers
        ]
        touched = tuple(k for k, own in enumerate(trained) if not ids.isdisjoint(own))
        wanted = {i for k in touched for i, requires_grad in trained[k].items() if requires_grad}
        return ClippedOptimizers(touched, {id(p) for p in parameters if p.requires_grad} == wanted)
