"""Reads the hyperparameters of an optimizer, under the names of the Deep Learning Tuning Playbook.

| playbook | PyTorch |
|---|---|
| learning_rate | lr; with a schedule, the base rate that PyTorch stores as initial_lr |
| momentum | momentum (SGD, RMSprop, Muon) |
| rho | alpha (RMSprop), rho (Adadelta) |
| beta1, beta2 | betas (Adam, AdamW, NAdam, RAdam, Adamax, ...) |
| epsilon | eps |
| weight_decay, nesterov, and any other hyperparameter | the same name |

`update_rule` returns the playbook's name of the update rule: "SGD", "momentum" or "Nesterov" for SGD, depending on its
settings, "RMSProp" for RMSprop, and the class name for every other optimizer.

The names are taken from the playbook, but PyTorch computes the updates. If PyTorch's update rule differs from the playbook's
rule, the same hyperparameters lead to a different training:

- SGD, momentum, Nesterov: identical. PyTorch's dampening, which the playbook does not have, applies to all steps except the
  first.
- RMSprop: the playbook computes sqrt(v + epsilon), PyTorch sqrt(v) + epsilon. For small v, PyTorch's epsilon corresponds to the
  square root of the playbook's epsilon. The playbook starts with v = 1, PyTorch with v = 0, so PyTorch's first steps are larger
  if gradients are below 1. The playbook's momentum buffer includes the learning rate, PyTorch's does not: after a change of the
  learning rate, the playbook's rule continues with steps of the old size for a while, PyTorch's does not. The playbook has no
  centered RMSprop.
- Adam: the playbook adds epsilon to sqrt(v) before the bias correction, PyTorch after it. At step t = 1, 2, ..., PyTorch's
  epsilon corresponds to the playbook's epsilon * sqrt(1 - beta2^t). The playbook's rule and PyTorch's rule differ only in the
  first steps.
- NAdam: epsilon as in Adam. The playbook's beta1 is constant, PyTorch's grows as beta1 * (1 - 0.5 * 0.96^(t * momentum_decay)).
  To correct the bias of the look-ahead momentum, PyTorch uses step t + 1, the playbook step t.
- AdamW: like Adam, except for the weight decay.
- Weight decay is not in the playbook's rules. In SGD, RMSprop, Adam, NAdam (without decoupled_weight_decay) and Adagrad it is
  part of the gradient. In AdamW, Adafactor and Muon it is separate and multiplied by the learning rate.
- Not in the playbook: Adagrad (lr_decay divides the learning rate by 1 + (t - 1) * lr_decay); Adafactor (the learning rate is
  relative to the parameters' size and at most 1 / sqrt(t); epsilon is a pair of other bounds); Muon (epsilon keeps a norm from
  being 0); LBFGS (one step evaluates the loss many times). A good range for the epsilon of one optimizer does not apply to
  another optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.readings import MAX_OPTIMIZERS, MAX_PARAMETER_GROUPS

_PLAYBOOK_OPTION_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
_EXCLUDED_OPTIONS = frozenset(("params", "foreach", "maximize", "capturable", "differentiable", "fused", "initial_lr"))
"""Entries of a parameter group that select an implementation and do not affect the update rule."""


def hyperparameters(optimizer: torch.optim.Optimizer, group_index: int = 0) -> dict[str, str]:
    """Return the hyperparameters of a parameter group that have plain values, as texts under the playbook's names."""
    group: Mapping[str, Any] = optimizer.param_groups[group_index]
    logged_names = dict(_PLAYBOOK_OPTION_NAMES)
    if "alpha" in group and isinstance(optimizer, torch.optim.RMSprop):
        logged_names["alpha"] = "rho"
    values = {"update_rule": update_rule(optimizer)}
    for name, value in group.items():
        if name in _EXCLUDED_OPTIONS:
            continue
        if name == "betas" and isinstance(value, (tuple, list)):
            values |= {f"beta{i}": _number_as_text(beta) for i, beta in enumerate(value, start=1)}
            continue
        logged_value = group.get("initial_lr", value) if name == "lr" else value
        if _is_plain_value(logged_value):
            values[logged_names.get(name, name)] = _number_as_text(logged_value)
    return values


def update_rule(optimizer: torch.optim.Optimizer) -> str:
    group: Mapping[str, Any] = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        return "SGD" if not group["momentum"] else "Nesterov" if group["nesterov"] else "momentum"
    return "RMSProp" if isinstance(optimizer, torch.optim.RMSprop) else type(optimizer).__name__


def further_optimizer_tags(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """Return the tags of each optimizer after the first: `advisor.optimizer.optimizer<k>` and
    `advisor.optimizer.optimizer<k>.<name>`.

    If a value of a later parameter group differs from the first group, it is in a tag `advisor.optimizer.group<j>.<name>` or
    `advisor.optimizer.optimizer<k>.group<j>.<name>`.
    """
    tags: dict[str, str] = {}
    for k, optimizer in enumerate(optimizers[:MAX_OPTIMIZERS]):
        name = contract.TAG_OPTIMIZER + (f"{contract.OPTIMIZER_SUFFIX}{k}" if k else "")
        first_values = hyperparameters(optimizer)
        if k:
            tags[name] = type(optimizer).__name__
            tags |= {f"{name}.{key}": value for key, value in first_values.items()}
        for j in range(1, min(len(optimizer.param_groups), MAX_PARAMETER_GROUPS)):
            values = hyperparameters(optimizer, j)
            tags |= {f"{name}{contract.GROUP_SUFFIX}{j}.{key}": v for key, v in values.items() if first_values.get(key) != v}
    return tags


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a framework's wrapper, because PyTorch runs only the hooks of the inner optimizer."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap_optimizer(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _is_plain_value(value: object) -> bool:
    if isinstance(value, (tuple, list)):  # tuples such as `eps` of Adafactor or `etas` of Rprop
        return all(part is None or isinstance(part, (bool, int, float, str)) for part in value)
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _number_as_text(value: Any) -> str:
    return str(value.item() if isinstance(value, torch.Tensor) else value)
