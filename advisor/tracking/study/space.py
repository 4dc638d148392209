"""Determines the study's search space: declared parameters first, the others inferred from the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.spec import MAX_NAME, Objective, StudySpec
from advisor.model.study import CurveBlock, Trial
from advisor.tracking.runs import Experiment
from advisor.tracking.study import from_study_file, inference

_RESERVED = 100
"""Number of characters of a study's name that are reserved for suffixes in the names of the next studies."""
_CUT = ("pruned", "early_stopped")
"""Statuses of trials that end before their planned length."""


@dataclass(frozen=True, slots=True)
class Space:
    """The search space of a study."""

    spec: StudySpec
    inferred: Mapping[str, str]
    """Entries for `Study.inferred`."""
    warnings: tuple[str, ...]
    """Warnings about trials with values outside the declared search space."""


def build_space(
    experiment: Experiment, spec: StudySpec | None, objective: Objective, trials: Sequence[Trial], block: CurveBlock
) -> Space:
    """Return the search space of the study. spec: study file that declares the space. block: curves of the objective."""
    params = [t.params for t in trials]
    declared, warnings = from_study_file.parameters(spec, params)
    guessed = {name: p for name, p in inference.infer_parameters(params).items() if name not in declared}
    inferred = {
        name: "range inferred from the trials" if parameter.searched else "the same in every trial"
        for name, parameter in guessed.items()
        if name not in ("objective", "direction")  # these two keys describe the study's own objective
    }
    name = (experiment.name or "study")[: MAX_NAME - _RESERVED]
    base = spec or StudySpec(study=name, objective=objective, trials=len(trials))
    if base.max_train_steps is None:
        base = base.model_copy(update={"max_train_steps": _max_train_steps(trials, block, objective)})
    full = base.model_copy(update={"objective": objective, "parameters": {**declared, **guessed}})
    return Space(full, inferred, tuple(warnings))


def _max_train_steps(trials: Sequence[Trial], block: CurveBlock, objective: Objective) -> int | None:
    """Return the planned length of training, from the trials that ran to their end; None if it cannot be told.

    If these planned different lengths, the best one's counts. Pruned trials and trials that stopped early say only that it is not
    less. Then, the longest of them is the best bound.
    """
    ends = {t.index: int(c.steps[-1]) for t in trials if len(c := block.curve(t.index))}
    whole = [t for t in trials if t.status == "complete"] or [t for t in trials if t.status not in _CUT]
    if whole:
        declared = [t.fact("max_train_steps") for t in whole]
        if len({d for d in declared if d >= 1}) > 1:
            sign = 1 if objective.direction == "minimize" else -1
            costs = {t.index: np.min(sign * block.curve(t.index).finite.values, initial=np.inf) for t in whole}
            declared = [min(whole, key=lambda t: (costs[t.index], t.index)).fact("max_train_steps")]
        return inference.infer_max_steps(declared, [ends[t.index] for t in whole if t.index in ends])
    declared = [t.fact("max_train_steps") for t in trials]
    longest = max([*ends.values(), *(int(d) for d in declared if math.isfinite(d))], default=0)
    return longest if longest >= 1 else None
