"""Reads facts about a model from its modules: normalisation, regularisation and compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from advisor_pytorch.facts.residuals import is_norm_layer

_CLASSIFIER_SUFFIXES = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Audio", "Video"))


def model_class_name(model: nn.Module) -> str:
    """Return the class name of the model inside any wrapper for distributed or compiled training."""
    for _ in range(4):
        inner_model = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner_model, nn.Module):
            break
        model = inner_model
    return type(model).__name__


def count_norm_layers(model: nn.Module) -> dict[str, int]:
    """Return the number of normalisation layers by class name; a layer counts if its class name contains "norm"."""
    return dict(sorted(Counter(type(m).__name__ for m in model.modules() if is_norm_layer(m)).items()))


def batch_norm_facts(model: nn.Module) -> dict[str, Any] | None:
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not layers:
        return None
    return {
        "layers": len(layers),
        "synced": sum(isinstance(m, nn.SyncBatchNorm) for m in layers),
        "without_running_stats": sum(not m.track_running_stats for m in layers),
        "frozen": sum(not m.training for m in layers) if model.training else 0,
        "momentum": layers[0].momentum,
    }


def declared_norm_order(model: nn.Module) -> str | None:
    """Return the norm order that PyTorch's own transformer layers declare."""
    layers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    orders = {"pre-norm" if m.norm_first else "post-norm" for m in model.modules() if isinstance(m, layers)}
    return None if not orders else orders.pop() if len(orders) == 1 else "mixed"


def number_of_classes(model: nn.Module) -> int | None:
    """Return the number of classes of a Transformers classification model; None for other models and tasks."""
    model = getattr(model, "module", model)  # use the model inside the wrapper
    if not type(model).__name__.endswith(_CLASSIFIER_SUFFIXES):
        return None
    config = getattr(model, "config", None)
    number, problem = getattr(config, "num_labels", None), getattr(config, "problem_type", None)
    is_single_label = problem in (None, "single_label_classification")
    return number if is_single_label and isinstance(number, int) and number >= 2 else None


def regulariser_strengths(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
    """Return the largest positive strength of each regulariser by name, as set in the model's modules and in the optimizers."""
    strengths: dict[str, float] = {}

    def add(name: str, strength: object) -> None:
        if isinstance(strength, torch.Tensor) and strength.numel() == 1:
            strength = strength.item() if strength.device.type == "cpu" else 0.0
        if isinstance(strength, (int, float)) and strength > 0:
            strengths[name] = max(strengths.get(name, 0.0), float(strength))

    for module in model.modules():
        name = type(module).__name__.lower()
        if name in ("droppath", "stochasticdepth"):
            add("stochastic_depth", getattr(module, "drop_prob", getattr(module, "p", 0.0)))
        elif "dropout" in name or isinstance(module, nn.modules.dropout._DropoutNd):
            add("dropout", getattr(module, "p", 0.0))
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            add("dropout", module.dropout)
        elif isinstance(module, nn.CrossEntropyLoss):
            add("label_smoothing", module.label_smoothing)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            add("weight_decay", group.get("weight_decay", 0.0))
    return strengths


def is_compiled(model: nn.Module) -> bool:
    return any(
        getattr(m, "_compiled_call_impl", None) is not None or type(m).__name__ == "OptimizedModule" for m in model.modules()
    )
