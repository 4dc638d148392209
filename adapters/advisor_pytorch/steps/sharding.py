"""The gradient norm where no rank holds the whole gradient: each rank's part of it, without a collective.

A collective needs every rank at the same place: it would hang where one rank has died or does not log, and would queue up
with the training's own communication. So each rank measures what it holds, weighed such that the squares of all ranks' parts add
up to the square of the global norm, and `advisor_pytorch.distributed.merging` adds them up later.

| gradient | weight of a rank's squares |
|---|---|
| DTensor, sharded over all dimensions of its mesh (FSDP2; also uneven and empty shards) | 1 |
| DTensor, replicated over mesh dimensions of sizes r, s, ... (HSDP, tensor parallel's norms) | 1 / (r s ...) |
| plain tensor beside DTensors (parameters that FSDP ignores) | 1 / number of ranks |

Ranks outside a parameter's mesh are taken to hold other parameters, as the stages of a pipeline do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from advisor_pytorch.steps.gradients import Measure, global_norm, norm_of


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor: spread over ranks in one way or another."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_flattened(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether FSDP1 manages them, which hides its shards in plain tensors."""
    return any(hasattr(p, "_fsdp_flattened") or type(p).__name__ == "FlatParameter" for p in parameters)


def local_value(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor with the value of `tensor`, which is the same on all ranks.

    Raises ValueError where a rank has only a part of it.
    """
    if not is_sharded(tensor):
        return tensor
    spread: Any = tensor.detach()
    if not _is_same_everywhere(spread):
        raise ValueError(f"this rank has only a part of it ({spread.placements}): give its full_tensor()")
    local: torch.Tensor = spread.to_local()
    return local


def _is_same_everywhere(spread: Any) -> bool:
    return all(placement.is_replicate() for placement in spread.placements)


def measure_for(
    parameters: Sequence[torch.Tensor], world_size: int, warn: Callable[[str, str], None]
) -> tuple[Measure | None, bool]:
    """What takes the norm of these parameters' gradients, and whether it takes only this rank's part of it."""
    if is_flattened(parameters):
        warn("fsdp1", "no gradient norm is logged: FSDP1 hides its shards; shard with fully_shard (FSDP2) to have it")
        return None, False
    if any(is_sharded(p) for p in parameters):
        return NormPart(world_size), world_size > 1
    return norm_of, False


class NormPart:
    """Measures this rank's part of a norm over all of `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._weights: dict[int, tuple[float, bool]] = {}  # looked up once: placements are slow to ask for

    def __call__(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The part as a float32 scalar; the squares of all ranks' parts add up to the square of the global norm.

        Raises ValueError for a gradient that is not yet reduced over the ranks.
        """
        by_weight: dict[float, list[torch.Tensor]] = {}
        with torch.no_grad():
            for parameter in parameters:
                gradient: Any = parameter.grad
                if gradient is None:
                    continue
                known = self._weights.get(id(parameter))
                if known is None:
                    known = self._weights[id(parameter)] = self._weigh(gradient), is_sharded(gradient)
                weight, sharded = known
                by_weight.setdefault(weight, []).append(gradient.to_local() if sharded else gradient)
            measured = [(global_norm(local), weight) for weight, local in by_weight.items()]
            parts = [
                norm if weight == 1.0 else norm * math.sqrt(weight) for norm, weight in measured if norm is not None
            ]
            if not parts:
                return torch.zeros(())
            if len(parts) == 1:
                return parts[0]
            total: torch.Tensor = torch.linalg.vector_norm(torch.stack([p.to(parts[0].device) for p in parts]))
            return total

    def of_whole(self, norm: torch.Tensor) -> torch.Tensor | None:
        """This rank's part where the whole norm is known already; None where it is not known on this rank."""
        if is_sharded(norm) and not _is_same_everywhere(norm):
            return None
        return local_value(norm.detach()) / math.sqrt(self._world_size)

    def _weigh(self, gradient: Any) -> float:
        if not is_sharded(gradient):
            return 1.0 / self._world_size
        copies = 1
        for dimension, placement in enumerate(gradient.placements):
            if placement.is_partial():
                raise ValueError("a gradient is still to be added up over the ranks")
            if placement.is_replicate():
                copies *= gradient.device_mesh.size(dimension)
        return 1.0 / copies
