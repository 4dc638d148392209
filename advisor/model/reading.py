"""Decisions about how to read an experiment as a study, made by the user or automatically."""

from __future__ import annotations

from typing import Literal

from advisor.model.frozen import FrozenModel

Kind = Literal[
    "supervised",
    "language-model",
    "reinforcement-learning",
    "gan",
    "diffusion",
    "self-supervised",
    "no-network",  # gradient boosting, scikit-learn: rules about training curves do not apply
    "unknown",
]
"""Kind of workload."""


class Reading(FrozenModel):
    """Decisions of the user about how to read the experiment. These decisions override what the analysis would infer."""

    ignore: tuple[str, ...] = ()
    """Logged parameters that are not hyperparameters."""
    population: str | None = None
    """The runs to analyse if the experiment mixes several populations: "all", or `PARAMETER=VALUE`."""
    kind: Kind | None = None
    """Kind of workload; None to infer the kind from the data."""


class Decision(FrozenModel):
    """A decision about the data that was made before any rule ran, such as which trials were pruned."""

    topic: str
    """Subject of the decision: "status", "population", "kind", "parameters" or "steps"."""
    text: str
    """The decision and its reason, one or two sentences."""
    overrule: str | None = None
    """Option with which the user overrides the decision, for example `--ignore tokens`; None if no option can override it."""
    parameters: tuple[str, ...] = ()
    """Parameters that have a single value in the analysed runs but different values in runs that were left out."""
