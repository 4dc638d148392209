"""Counts the non-finite values in a model, its gradients, optimizers and batches, which waits for the device."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

MAX_BATCH_TENSORS = 16
"""Maximum number of tensors of one batch that are inspected."""
MAX_NAME_LENGTH = 120
IGNORED_LABEL = -100
"""Class label that PyTorch's cross-entropy loss ignores by default."""

Facts = dict[str, Any]


def tensor_facts(name: str, tensor: torch.Tensor) -> Facts:
    """Count a tensor's non-finite values and zeros, and measure its largest finite magnitude and root mean square."""
    local_tensor = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
    values = local_tensor.coalesce().values() if local_tensor.is_sparse else local_tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    facts: Facts = {"name": name[:MAX_NAME_LENGTH], "shape": list(tensor.shape)[:8], "dtype": dtype, "bad": 0}
    if not values.numel() or values.is_complex() or values.is_quantized:
        return facts
    if not values.is_floating_point():
        return facts | _integer_facts(values)
    is_finite = torch.isfinite(values)
    bad = values.numel() - int(is_finite.sum())
    magnitude = values.float().abs() if values.dtype != torch.float64 else values.abs()
    finite_magnitude = magnitude[is_finite] if bad else magnitude
    facts |= {"bad": bad, "zeros": int((values == 0).sum())}
    if finite_magnitude.numel():
        facts |= {"max": float(finite_magnitude.max()), "rms": math.sqrt(float((finite_magnitude.double() ** 2).mean()))}
    if bad and values.dim() > 1 and (rows := (~is_finite).flatten(1).any(1).nonzero().flatten()).numel() < len(values):
        facts["bad_rows"] = rows[:5].tolist()
    return facts


def _integer_facts(values: torch.Tensor) -> Facts:
    if values.dtype == torch.bool:
        return {"true": int(values.sum()), "values": values.numel()}
    ignored = int((values == IGNORED_LABEL).sum())
    return {"lowest": int(values.min()), "highest": int(values.max()), "ignored": ignored / values.numel()}


def named_parameters(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """Return the model's parameters in the order of its modules, followed by parameters that only an optimizer has."""
    model_parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    model_ids = {id(p) for p in model_parameters.values()}
    optimizer_parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return model_parameters | {f"optimizer.{i}": p for i, p in enumerate(optimizer_parameters) if id(p) not in model_ids}


def initial_parameter_norms(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameter norms without waiting for the device; an empty list if a parameter is sharded or uninitialised."""
    try:
        with torch.no_grad():
            return list(torch._foreach_norm([p.detach() for p in model.parameters()]))
    except (RuntimeError, TypeError, ValueError):  # some parameters are sharded or not initialised yet
        return []


def largest_initial_gains(model: torch.nn.Module, norms: Sequence[torch.Tensor]) -> list[Facts]:
    """Return the weights with the largest gains at initialisation. The gain of a weight is its root mean square times the
    square root of its number of inputs.

    With a usual initialisation, the gain is about 1. Embeddings are omitted, because they do not sum over inputs.
    """
    named_weights = list(model.named_parameters())
    embedding_ids = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    gains: list[Facts] = []
    for (name, p), norm in zip(named_weights, norms, strict=False):
        if p.dim() > 1 and p.numel() and id(p) not in embedding_ids:
            rms = float(norm) / math.sqrt(p.numel())
            gains.append({"name": name, "rms": rms, "shape": list(p.shape)[:8]})
    return sorted(gains, key=lambda facts: -facts["rms"] * math.sqrt(math.prod(facts["shape"][1:])))[:6]


def loss_scale() -> float | None:
    """Return the loss scale of an enabled gradient scaler in this process that has already scaled a loss."""
    for one in gc.get_objects():
        if type(one).__name__ == "GradScaler" and isinstance(one, torch.amp.GradScaler) and one.is_enabled():
            scale = getattr(one, "_scale", None)
            if scale is not None:
                return float(scale)
    return None


def gradient_facts(parameters: Mapping[str, torch.Tensor]) -> list[Facts]:
    return [tensor_facts(name, p.grad) for name, p in parameters.items() if p.grad is not None]


def buffer_facts(model: torch.nn.Module) -> list[Facts]:
    """Return facts about each buffer that contains non-finite values, and whether its module is in training mode."""
    modules = dict(model.named_modules())
    facts = []
    for name, buffer in model.named_buffers():
        if (fact := tensor_facts(name, buffer))["bad"]:
            facts.append(fact | {"training": modules[name.rpartition(".")[0]].training})
    return facts


def optimizer_facts(optimizers: Sequence[torch.optim.Optimizer]) -> list[Facts]:
    """Return, for each optimizer, its class, the scalar hyperparameters of each group, and facts about its state."""
    return [
        {
            "class": type(optimizer).__name__,
            "groups": [_scalar_optimizer_options(group) for group in optimizer.param_groups[:8]],
            "state": _optimizer_state_facts(optimizer),
        }
        for optimizer in optimizers[:8]
    ]


def _scalar_optimizer_options(group: Mapping[str, Any]) -> Facts:
    options = {}
    for name, value in group.items():
        scalar = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if isinstance(scalar, (bool, int, float, str)) or name == "betas":
            options[name] = list(map(float, value)) if name == "betas" else scalar
    return options


def _optimizer_state_facts(optimizer: torch.optim.Optimizer) -> Facts:
    """`explained`: fraction of the non-finite parameter values whose second moment is 0, which epsilon 0 divides by."""
    facts_by_kind: dict[str, Facts] = {}
    bad_values = zero_moment_values = 0
    for parameter, state in optimizer.state.items():
        for kind, moment in state.items():
            if isinstance(moment, torch.Tensor) and moment.is_floating_point() and moment.shape == parameter.shape:
                facts = tensor_facts(kind, moment)
                entry = facts_by_kind.setdefault(kind, {"tensors": 0, "bad": 0, "zeros": 0})
                entry["tensors"] += 1
                entry["bad"] += facts["bad"] > 0
                entry["zeros"] += facts.get("zeros", 0)
        second_moment = state.get("exp_avg_sq", state.get("square_avg")) if isinstance(state, dict) else None
        if isinstance(second_moment, torch.Tensor) and second_moment.shape == parameter.shape:
            bad = ~torch.isfinite(parameter.detach())
            bad_values += int(bad.sum())
            zero_moment_values += int((bad & (second_moment == 0)).sum())
    return {"moments": facts_by_kind, **({"explained": zero_moment_values / bad_values} if bad_values else {})}


def batch_facts(batch: object) -> list[Facts]:
    return [tensor_facts(name, tensor) for name, tensor in list(named_tensors(batch))[:MAX_BATCH_TENSORS]]


def named_tensors(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    named_items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        named_items = value.items()
    elif isinstance(value, (list, tuple)):
        named_items = enumerate(value)
    if depth < 4:
        for key, part in named_items:
            yield from named_tensors(part, f"{name}[{key!r}]", depth + 1)
