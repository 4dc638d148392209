"""The hyperparameters of an optimizer under the Deep Learning Tuning Playbook's names.

| playbook | PyTorch |
|---|---|
| learning_rate | lr; under a schedule the base rate, which PyTorch notes as initial_lr |
| momentum | momentum (SGD, RMSprop) |
| rho | alpha (RMSprop), rho (Adadelta) |
| beta1, beta2 | betas (Adam, AdamW, NAdam, ...) |
| epsilon | eps |
| weight_decay, nesterov, and all others | the same |

The names are the playbook's, the update rules PyTorch's. Where they differ, the same values train differently:

- Momentum and Nesterov: the same, unless dampening is used: PyTorch does not dampen the first step.
- RMSprop: the playbook takes sqrt(v + epsilon), PyTorch sqrt(v) + epsilon, so that an epsilon of the playbook's is about the
  square of PyTorch's. The playbook starts at v = 1, PyTorch at 0, so that PyTorch's first steps are larger. The playbook's
  momentum buffer holds steps (the learning rate is inside), PyTorch's holds scaled gradients (it is outside): after a change
  of the learning rate the playbook's rule goes on with steps of the old size for a while, PyTorch's does not.
- Adam and NAdam: the playbook adds epsilon to sqrt(v) before the bias correction, PyTorch after it: PyTorch's epsilon at step t
  acts as the playbook's epsilon * sqrt(1 - beta2^t). They differ early on, and not in the long run.
- NAdam: the playbook's beta1 is constant, PyTorch's momentum is beta1 * (1 - 0.5 * 0.96^(t * momentum_decay)).
- Weight decay: part of the gradient in SGD, RMSprop, Adam and NAdam (unless decoupled_weight_decay), times the learning rate and
  apart from it in AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.rates import MAX_GROUPS, MAX_OPTIMIZERS

_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
_HOW_NOT_WHAT = frozenset(("params", "foreach", "maximize", "capturable", "differentiable", "fused", "initial_lr"))
"""Entries of a parameter group that choose an implementation and not an update rule."""


def hyperparameters(optimizer: torch.optim.Optimizer, group_index: int = 0) -> dict[str, str]:
    """The hyperparameters of a parameter group by the playbook's names, as text; any optimizer's that are plain values."""
    group: Mapping[str, Any] = optimizer.param_groups[group_index]
    renamed = dict(_NAMES)
    if "alpha" in group and isinstance(optimizer, torch.optim.RMSprop):
        renamed["alpha"] = "rho"
    found: dict[str, str] = {}
    for name, value in group.items():
        if name in _HOW_NOT_WHAT:
            continue
        if name == "betas" and isinstance(value, (tuple, list)):
            found |= {f"beta{i}": _text(beta) for i, beta in enumerate(value, start=1)}
            continue
        chosen = group.get("initial_lr", value) if name == "lr" else value
        if _is_plain(chosen):
            found[renamed.get(name, name)] = _text(chosen)
    return found


def describe_further(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """Tags of optimizers after the first, `advisor.optimizer.optimizer<k>` and `advisor.optimizer.optimizer<k>.<name>`.

    And `advisor.optimizer.group<j>.<name>`, or `advisor.optimizer.optimizer<k>.group<j>.<name>`, of further parameter groups, where
    they differ from the first one.
    """
    tags: dict[str, str] = {}
    for k, optimizer in enumerate(optimizers[:MAX_OPTIMIZERS]):
        name = contract.TAG_OPTIMIZER + (f"{contract.OPTIMIZER_SUFFIX}{k}" if k else "")
        first = hyperparameters(optimizer)
        if k:
            tags[name] = type(optimizer).__name__
            tags |= {f"{name}.{key}": value for key, value in first.items()}
        for j in range(1, min(len(optimizer.param_groups), MAX_GROUPS)):
            found = hyperparameters(optimizer, j)
            tags |= {f"{name}{contract.GROUP_SUFFIX}{j}.{key}": v for key, v in found.items() if first.get(key) != v}
    return tags


def bare(optimizer: Any) -> Any:
    """The optimizer that a framework's wrapper steps: PyTorch runs the hooks of that one alone."""
    inner = getattr(optimizer, "optimizer", None)
    return bare(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _text(value: Any) -> str:
    return str(value.item() if isinstance(value, torch.Tensor) else value)
