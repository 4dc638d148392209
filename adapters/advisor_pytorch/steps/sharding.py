"""Measures each rank's part of the gradient norm without a collective operation; used if no rank has the whole gradient.

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
from typing import Any

import torch

from advisor_pytorch.steps.gradients import NormFunction, PerParameterGradientNorm, global_norm


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a DTensor, PyTorch's class for tensors that are distributed over ranks."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_flattened_by_fsdp1(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether FSDP1, which hides its shards in plain tensors, manages these parameters."""
    return any(hasattr(p, "_fsdp_flattened") or type(p).__name__ == "FlatParameter" for p in parameters)


def replicated_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the value of `tensor`, which must be the same on all ranks.

    Raises ValueError if this rank holds only a shard of `tensor`.
    """
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
    """Return (function that computes the norm of these parameters' gradients, whether that norm covers only this rank's
    shards)."""
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
        """Return this rank's part of the norm as a float32 scalar; the squares of all ranks' parts add up to the square of the
        global norm.

        Raises ValueError for a gradient that has not been reduced over the ranks yet.
        """
        by_weight: dict[float, list[torch.Tensor]] = {}
        with torch.no_grad():
            for parameter in parameters:
                gradient: Any = parameter.grad
                if gradient is None:
                    continue
                known = self._weights.get(id(parameter))
                if known is None:
                    known = self._weights[id(parameter)] = self._norm_weight(gradient), is_sharded(gradient)
                weight, sharded = known
                by_weight.setdefault(weight, []).append(gradient.to_local() if sharded else gradient)
            measured = [(global_norm(local), weight) for weight, local in by_weight.items()]
            parts = [norm if weight == 1.0 else norm * math.sqrt(weight) for norm, weight in measured if norm is not None]
            if not parts:
                return torch.zeros((), device="cpu")
            if len(parts) == 1:
                return parts[0]
            total: torch.Tensor = torch.linalg.vector_norm(torch.stack([p.to(parts[0].device) for p in parts]))
            return total

    def part_of_global_norm(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's part of a norm that was computed over all ranks; None if this rank does not know that norm."""
        if is_sharded(norm) and not _is_replicated(norm):
            return None
        return replicated_value(norm.detach()) / math.sqrt(self._world_size)

    def _norm_weight(self, gradient: Any) -> float:
        if not is_sharded(gradient):
            return 1.0 / self._world_size
        copies = 1
        for dimension, placement in enumerate(gradient.placements):
            if placement.is_partial():
                raise ValueError("a gradient has not been summed over the ranks yet")
            if placement.is_replicate():
                copies *= gradient.device_mesh.size(dimension)
        return 1.0 / copies
