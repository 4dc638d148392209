"""Defines decisions, by users or automatic, about how to read an experiment as a study."""

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
    "no-network",  # for example gradient boosting or scikit-learn, to which rules about training curves do not apply
    "unknown",
]
"""Kind of workload."""


class Reading(FrozenModel):
    """The user's decisions about how to read an experiment. These decisions override the decisions that the analysis would
    make."""

    ignore: tuple[str, ...] = ()
    """Logged parameters that are not hyperparameters."""
    population: str | None = None
    """Runs to analyse if an experiment mixes groups of runs: "all", or `PARAMETER=VALUE`."""
    kind: Kind | None = None
    """Kind of workload, such as "language-model"; None to infer it from the data."""


class Decision(FrozenModel):
    """A decision about the data before any rule ran, such as which trials were pruned."""

    topic: str
    """Subject of the decision: "status", "population" (group of runs), "kind" (of workload), "parameters" or "steps"."""
    text: str
    """The decision and its reason, in one or two sentences."""
    overrule: str | None = None
    """Option with which the user overrides the decision, for example `--ignore tokens`; None if there is no such option."""
    parameters: tuple[str, ...] = ()
    """Parameters with one value in the analysed runs but other values in runs that were left out."""
