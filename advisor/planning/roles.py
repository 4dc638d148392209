"""The plan `roles`: what each hyperparameter is in a study, and why.

Playbook: "Identifying scientific, nuisance, and fixed hyperparameters".

*What calls for it.* Every study: its goal decides what is scientific (measured), nuisance (tuned so that the comparison is fair)
and fixed.

*What it does.* The rules of thumb, by what a hyperparameter is: those of the optimizer are nuisance, as they interact most with
every other change; which optimizer it is, is scientific or fixed, and its hyperparameters exist only under it; the strength of a
regulariser is nuisance, whether to use it scientific; the architecture is scientific or fixed, as it changes what training and
serving cost; the batch size and the length of the training are fixed, never tuned for validation quality. The user's own role
stands.
"""

from __future__ import annotations

from advisor.model import parameter_kinds
from advisor.model.space import counts_training
from advisor.model.spec import Role


def role_of(name: str) -> tuple[Role, str]:
    """The role that a hyperparameter of this name has unless the study's goal gives it another, and the reason."""
    if counts_training(name):
        return (
            "fixed",
            "the length of the training is never tuned within a study: it is refined from where the best steps lie",
        )
    if parameter_kinds.is_batch_size(name):
        return "fixed", "the batch size is chosen by throughput, not for validation quality"
    if parameter_kinds.chooses_optimizer(name):
        return (
            "fixed",
            "an optimizer is compared with others or kept, and its hyperparameters mean nothing to another one",
        )
    if parameter_kinds.is_regulariser(name):
        return "nuisance", "the strength of a regulariser has to suit every other change"
    if parameter_kinds.is_of_optimizer(name) or parameter_kinds.clips_norm(name):
        return (
            "nuisance",
            "the optimizer's hyperparameters interact most with every other change, so they are tuned for each",
        )
    return "fixed", "what changes the cost of training or serving is compared or kept, not tuned along the way"


def why(name: str, role: Role, more: str) -> str:
    """The reason for a role, then `more`; the rule of thumb is left out where the study gives the hyperparameter another role."""
    usual, reason = role_of(name)
    if role == "scientific":
        return f"compared in this study; {more}"
    return f"{reason}; {more}" if role == usual else more
