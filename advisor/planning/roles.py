"""The role of each hyperparameter in a study, and why.

Playbook: "Identifying scientific, nuisance, and fixed hyperparameters".

A study's goal decides what is scientific (measured), nuisance (tuned so that the comparison is fair) and fixed. Unless the user
says otherwise: the optimizer's hyperparameters and the strength of regularisers are nuisance; the choice of optimizer, the
architecture, the batch size and the training length are fixed.
"""

from __future__ import annotations

from advisor.model import parameter_kinds
from advisor.model.space import counts_training
from advisor.model.spec import Role


def role_of(name: str) -> tuple[Role, str]:
    """Return the default role of a hyperparameter of this name, and the reason."""
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
    """Return the reason for a role, then `more`; without the default reason if the study sets another role."""
    default, reason = role_of(name)
    if role == "scientific":
        return f"compared in this study; {more}"
    return f"{reason}; {more}" if role == default else more
