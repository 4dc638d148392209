"""The hyperparameters of an optimizer under the Deep Learning Tuning Playbook's names.

| playbook | PyTorch |
|---|---|
| learning_rate | lr; under a schedule the base rate, which PyTorch notes as initial_lr |
| momentum | momentum (SGD, RMSprop, Muon) |
| rho | alpha (RMSprop), rho (Adadelta) |
| beta1, beta2 | betas (Adam, AdamW, NAdam, RAdam, Adamax, ...) |
| epsilon | eps |
| weight_decay, nesterov, and all others | the same name |

`update_rule` is the playbook's name of the rule: SGD is "SGD", "momentum" or "Nesterov" by its settings, RMSprop "RMSProp", and
every other optimizer goes by its class.

The names are the playbook's, the update rules PyTorch's. Where they differ, the same values train differently:

- SGD, momentum and Nesterov: the same. With dampening, which the playbook does not have, PyTorch dampens all steps but the first.
- RMSprop: the playbook takes sqrt(v + epsilon), PyTorch sqrt(v) + epsilon: where v is small, the square root of the playbook's
  epsilon does what PyTorch's epsilon does. The playbook starts at v = 1, PyTorch at 0, so that PyTorch's first steps are larger
  (where gradients are below 1). The playbook's momentum buffer holds steps (the learning rate is inside), PyTorch's holds scaled
  gradients (it is outside): after a change of the learning rate the playbook's rule goes on with steps of the old size for a
  while, PyTorch's does not. Centered RMSprop is not in the playbook.
- Adam: the playbook adds epsilon to sqrt(v) before the bias correction, PyTorch after it: PyTorch's epsilon at step t = 1, 2, ...
  acts as the playbook's epsilon * sqrt(1 - beta2^t). They differ early on, and not in the long run.
- NAdam: epsilon as in Adam. The playbook's beta1 is constant, PyTorch's grows: beta1 * (1 - 0.5 * 0.96^(t * momentum_decay)).
  And PyTorch corrects the bias of the momentum it looks ahead with by step t + 1, where the playbook takes t for both.
- AdamW: Adam, but for the weight decay.
- Weight decay, which the playbook's rules leave out: part of the gradient in SGD, RMSprop, Adam, NAdam (unless
  decoupled_weight_decay) and Adagrad; apart from it, times the learning rate, in AdamW, Adafactor and Muon.
- Not in the playbook: Adagrad (lr_decay divides the learning rate by 1 + (t - 1) * lr_decay); Adafactor, whose learning rate is
  relative to the size of the parameters and at most 1 / sqrt(t), and whose epsilon is a pair that bounds other things; Muon, whose
  epsilon keeps a norm from being 0; and LBFGS, one step of which evaluates the loss often.
  Ranges for one optimizer's epsilon say nothing of another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.rates import MAX_GROUPS, MAX_OPTIMIZERS

_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
_EXCLUDED_ENTRIES = frozenset(("params", "foreach", "maximize", "capturable", "differentiable", "fused", "initial_lr"))
"""Entries of a parameter group that choose an implementation, not an update rule."""


def hyperparameters(optimizer: torch.optim.Optimizer, group_index: int = 0) -> dict[str, str]:
    """Return the plain-valued hyperparameters of a parameter group by the playbook's names, as text."""
    group: Mapping[str, Any] = optimizer.param_groups[group_index]
    renamed = dict(_NAMES)
    if "alpha" in group and isinstance(optimizer, torch.optim.RMSprop):
        renamed["alpha"] = "rho"
    values = {"update_rule": update_rule(optimizer)}
    for name, value in group.items():
        if name in _EXCLUDED_ENTRIES:
            continue
        if name == "betas" and isinstance(value, (tuple, list)):
            values |= {f"beta{i}": _text(beta) for i, beta in enumerate(value, start=1)}
            continue
        chosen = group.get("initial_lr", value) if name == "lr" else value
        if _is_plain(chosen):
            values[renamed.get(name, name)] = _text(chosen)
    return values


def update_rule(optimizer: torch.optim.Optimizer) -> str:
    """Return the playbook's name of the rule ("SGD", "momentum", "Nesterov", "RMSProp"), else the class name."""
    group: Mapping[str, Any] = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        return "SGD" if not group["momentum"] else "Nesterov" if group["nesterov"] else "momentum"
    return "RMSProp" if isinstance(optimizer, torch.optim.RMSprop) else type(optimizer).__name__


def further_optimizer_tags(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """Return tags of optimizers after the first: `advisor.optimizer.optimizer<k>` and `advisor.optimizer.optimizer<k>.<name>`.

    Further parameter groups have tags for values that differ from the first group: `advisor.optimizer.group<j>.<name>`, or
    `advisor.optimizer.optimizer<k>.group<j>.<name>`.
    """
    tags: dict[str, str] = {}
    for k, optimizer in enumerate(optimizers[:MAX_OPTIMIZERS]):
        name = contract.TAG_OPTIMIZER + (f"{contract.OPTIMIZER_SUFFIX}{k}" if k else "")
        first = hyperparameters(optimizer)
        if k:
            tags[name] = type(optimizer).__name__
            tags |= {f"{name}.{key}": value for key, value in first.items()}
        for j in range(1, min(len(optimizer.param_groups), MAX_GROUPS)):
            values = hyperparameters(optimizer, j)
            tags |= {f"{name}{contract.GROUP_SUFFIX}{j}.{key}": v for key, v in values.items() if first.get(key) != v}
    return tags


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a framework's wrapper: PyTorch runs the hooks of that one only."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap_optimizer(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):  # Adafactor's eps, Rprop's etas
        return all(part is None or isinstance(part, (bool, int, float, str)) for part in value)
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _text(value: Any) -> str:
    return str(value.item() if isinstance(value, torch.Tensor) else value)
