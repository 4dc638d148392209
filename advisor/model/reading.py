"""Defines the decisions, made by users or automatically, on how an experiment is read as a study."""

from __future__ import annotations

from typing import Literal

from advisor.model.frozen import FrozenModel

WorkloadKind = Literal[
    "supervised",
    "language-model",
    "reinforcement-learning",
    "gan",
    "diffusion",
    "self-supervised",
    "no-network",  # for example gradient boosting, to which rules about training curves do not apply
    "unknown",
]
"""Kind of workload."""


class Reading(FrozenModel):
    """The user's decisions on how an experiment is read as a study, which override the automatic ones."""

    ignore: tuple[str, ...] = ()
    """Names of logged parameters that are no hyperparameters."""
    population: str | None = None
    """Runs to analyse if an experiment contains several groups of runs: "all" or `PARAMETER=VALUE`."""
    kind: WorkloadKind | None = None
    """Kind of workload, such as "language-model", or None if the analysis should infer it."""


class Decision(FrozenModel):
    """A decision about the data that was made before any rule ran, such as which trials count as pruned."""

    topic: str
    """Subject of the decision: "status", "population" (group of runs), "kind" (of workload), "parameters" or "steps"."""
    text: str
    """The decision and the reason for it, in one or two sentences."""
    overrule: str | None = None
    """Command-line option that overrides the decision, such as `--ignore tokens`, or None if there is none."""
    parameters: tuple[str, ...] = ()
    """Parameters that have one value in the analysed runs, but other values in runs that were left out."""
