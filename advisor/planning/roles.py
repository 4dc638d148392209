"""Assigns each hyperparameter of a study its default role, and states why.

Playbook: "Identifying scientific, nuisance, and fixed hyperparameters".

The goal of a study decides which hyperparameters are scientific (compared), nuisance (tuned so that the comparison is fair) and
fixed. By default, the optimizer's hyperparameters and regularisation strengths are nuisance parameters; the choice of optimizer,
the architecture, the batch size and the training length are fixed.
"""

from __future__ import annotations

from advisor.model import parameter_kinds
from advisor.model.space import counts_training
from advisor.model.spec import Role


def role_of(name: str) -> tuple[Role, str]:
    """Return the default role of a hyperparameter with this name, and the reason for the role."""
    if counts_training(name):
        return "fixed", "training length is not tuned within a study; set it from the best steps of the last one"
    if parameter_kinds.is_batch_size(name):
        return "fixed", "choose the batch size by throughput, not by validation quality"
    if parameter_kinds.chooses_optimizer(name):
        return "fixed", "compare optimizers in a study of their own; their hyperparameters do not carry over"
    if parameter_kinds.is_regulariser(name):
        return "nuisance", "the best strength of a regulariser changes with every other hyperparameter"
    if parameter_kinds.is_of_optimizer(name) or parameter_kinds.clips_norm(name):
        return "nuisance", "optimizer hyperparameters interact with every other change, so tune them in each study"
    return "fixed", "it changes the cost of training or serving, so compare its values in a study of their own"


def why(name: str, role: Role, more: str) -> str:
    """Return the default reason for the role, followed by `more`. For any other role, the default reason is left out."""
    default, reason = role_of(name)
    if role == "scientific":
        return f"compared in this study; {more}"
    return f"{reason}; {more}" if role == default else more
