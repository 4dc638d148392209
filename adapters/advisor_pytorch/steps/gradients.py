"""Computes gradient norms, also this rank's part of a norm if no rank has the whole gradient, and finds the optimizers whose
gradients a clipping call changes.

A collective operation would hang if a rank has exited or does not log, and would delay the training's own communication. Each
rank therefore weights the squares of its shards so that the sum over all ranks is the square of the global norm;
`advisor_pytorch.distributed.merging` computes this sum later.

| gradient | weight of a rank's squares |
|---|---|
| DTensor, sharded over all dimensions of its mesh (FSDP2; also uneven and empty shards) | 1 |
| DTensor, replicated over mesh dimensions of sizes r, s, ... (HSDP, tensor parallel's norms) | 1 / (r s ...) |
| plain tensor in a model that also has DTensors (parameters that FSDP ignores) | 1 / number of ranks |

Ranks outside a parameter's mesh are assumed to hold other parameters, as in the stages of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from advisor import contract

NormFunction = Callable[[Sequence[torch.Tensor]], "torch.Tensor | None"]
"""Function that returns the total L2 norm of the parameters' gradients as a scalar tensor; None if there are no gradients."""


def gradient_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return global_norm([gradient for p in parameters if (gradient := p.grad) is not None])


class PerParameterGradientNorm:
    """Computes the same norm as `gradient_norm`, and keeps the norm of each parameter's gradient."""

    parts: torch.Tensor | None = None
    """Norm of each parameter's gradient in the last call, in the order of the parameters; None if there were no gradients."""

    def __call__(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
        self.parts = _norms_of_tensors(gradients) if gradients else None
        return None if self.parts is None else _total_of_norms(self.parts)


def global_norm(gradients: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the total L2 norm on the device of the first gradient, without waiting for the device."""
    return _total_of_norms(_norms_of_tensors(gradients)) if gradients else None


def _total_of_norms(norms: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = torch.linalg.vector_norm(norms)
    return total


@torch.no_grad()
def _norms_of_tensors(gradients: list[torch.Tensor]) -> torch.Tensor:
    try:
        is_16_bit = gradients[0].dtype in (torch.float16, torch.bfloat16)  # whose squares lose precision
        return torch.stack(list(torch._foreach_norm(gradients, 2.0, dtype=torch.float32 if is_16_bit else None)))
    except (RuntimeError, TypeError):  # sparse gradients, several devices, or dtypes that the fused kernel rejects
        dense_gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
        norm_dtypes = [torch.float64 if p.dtype == torch.float64 else torch.float32 for p in dense_gradients]
        norms = [torch.linalg.vector_norm(p, dtype=dtype) for p, dtype in zip(dense_gradients, norm_dtypes, strict=True)]
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

    def find(self, parameters: Sequence[torch.Tensor]) -> ClippedOptimizers:
        if not parameters:
            return ClippedOptimizers((), False)
        group_sizes = (len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups)
        key = (id(parameters[0]), id(parameters[-1]), len(parameters), sum(group_sizes))
        if key not in self._known:
            self._known[key] = self._find_uncached(parameters)
        return self._known[key]

    def _find_uncached(self, parameters: Sequence[torch.Tensor]) -> ClippedOptimizers:
        ids = {id(p) for p in parameters}
        trained_by_optimizer = [
            {id(p): p.requires_grad for group in optimizer.param_groups for p in group["params"]}
            for optimizer in self._optimizers
        ]
        clipped_optimizers = tuple(k for k, own in enumerate(trained_by_optimizer) if not ids.isdisjoint(own))
        trained_ids = {i for k in clipped_optimizers for i, requires_grad in trained_by_optimizer[k].items() if requires_grad}
        return ClippedOptimizers(clipped_optimizers, {id(p) for p in parameters if p.requires_grad} == trained_ids)


SHARD_NORM_SUFFIX = "~part"
"""Suffix in the name of a value that covers only one rank's shards. The squares of the partial values of all ranks add up to
the square of the total value. The partial value of a single rank is never logged."""
NORM, LIMIT = contract.CLIPPED + "~norm", contract.CLIPPED + "~limit"
"""Prefixes of the internal names for the norm and the threshold of a gradient clipping."""


def shard_metric_name(name: str) -> str:
    return name + SHARD_NORM_SUFFIX


def clipped_norm_name(clipping: str) -> str:
    return f"{NORM}{clipping}{SHARD_NORM_SUFFIX}"


def clipping_limit_name(clipping: str, *, is_partial: bool) -> str:
    """is_partial: True if each rank sends only a part of the threshold."""
    return f"{LIMIT}{clipping}{SHARD_NORM_SUFFIX if is_partial else ''}"


def is_sent_to_rank_0(name: str) -> bool:
    return name.endswith(SHARD_NORM_SUFFIX) or name in (contract.STEP_TIME, contract.EXAMPLES_PER_SECOND)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a DTensor, PyTorch's class for tensors that are distributed over ranks."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_flattened_by_fsdp1(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether FSDP1, which hides its shards in plain tensors, manages these parameters."""
    return any(hasattr(p, "_fsdp_flattened") or type(p).__name__ == "FlatParameter" for p in parameters)


def is_fully_sharded(model: torch.nn.Module) -> bool:
    """Return whether no rank holds all parameters of the model."""
    parameters = list(model.parameters())
    return any(is_sharded(p) for p in parameters) or is_flattened_by_fsdp1(parameters)


def replicated_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor. Raises ValueError if this rank holds only a shard of `tensor`."""
    if not is_sharded(tensor):
        return tensor
    distributed: Any = tensor.detach()
    if not _is_replicated(distributed):
        raise ValueError(f"this rank has only a part of it ({distributed.placements}): pass its full_tensor()")
    local: torch.Tensor = distributed.to_local()
    return local


def _is_replicated(tensor: Any) -> bool:
    return all(placement.is_replicate() for placement in tensor.placements)


def choose_norm_measure(
    parameters: Sequence[torch.Tensor], world_size: int, warn: Callable[[str, str], None]
) -> tuple[NormFunction | None, bool]:
    """Return (norm function, whether its norm covers only this rank's shards)."""
    if is_flattened_by_fsdp1(parameters):
        warn("fsdp1", "no gradient norm is logged, because FSDP1 hides its shards: use fully_shard (FSDP2) to get it")
        return None, False
    if any(is_sharded(p) for p in parameters):
        return GradientNormPart(world_size), world_size > 1
    return PerParameterGradientNorm(), False


class GradientNormPart:
    """Computes this rank's part of a gradient norm over all `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._weights: dict[int, tuple[float, bool]] = {}  # cached, because reading a DTensor's placements is slow

    def __call__(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a float32 scalar. Raises ValueError for a gradient that has not been reduced over the ranks yet."""
        by_weight: dict[float, list[torch.Tensor]] = {}
        with torch.no_grad():
            for parameter in parameters:
                gradient: Any = parameter.grad
                if gradient is None:
                    continue
                weight_and_sharded = self._weights.get(id(parameter))
                if weight_and_sharded is None:
                    weight_and_sharded = self._weights[id(parameter)] = self._norm_weight(gradient), is_sharded(gradient)
                weight, sharded = weight_and_sharded
                by_weight.setdefault(weight, []).append(gradient.to_local() if sharded else gradient)
            pairs = ((global_norm(local), weight) for weight, local in by_weight.items())
            norms = [n if weight == 1.0 else n * math.sqrt(weight) for n, weight in pairs if n is not None]
            if not norms:
                return torch.zeros((), device="cpu")
            return norms[0] if len(norms) == 1 else _total_of_norms(torch.stack([n.to(norms[0].device) for n in norms]))

    def part_of_global_norm(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's part of a norm that was computed over all ranks; None if this rank does not know that norm."""
        if is_sharded(norm) and not _is_replicated(norm):
            return None
        return replicated_value(norm.detach()) / math.sqrt(self._world_size)

    def _norm_weight(self, gradient: Any) -> float:
        if not is_sharded(gradient):
            return 1.0 / self._world_size
        replicas = 1
        for dimension, placement in enumerate(gradient.placements):
            if placement.is_partial():
                raise ValueError("a gradient has not been summed over the ranks yet")
            if placement.is_replicate():
                replicas *= gradient.device_mesh.size(dimension)
        return 1.0 / replicas
