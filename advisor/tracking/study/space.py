"""Determines the study's search space: declared parameters first, the others inferred from the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.model.spec import MAX_NAME, Objective, StudySpec
from advisor.model.study import CurveBlock, Trial
from advisor.tracking.runs import Experiment
from advisor.tracking.study import from_study_file, inference

_RESERVED = 100
"""Number of characters of a study's name that are reserved for suffixes in the names of the next studies."""


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
        ends = [int(c.steps[-1]) for t in trials if len(c := block.curve(t.index))]
        steps = inference.infer_max_steps([t.fact("max_train_steps") for t in trials], ends)
        base = base.model_copy(update={"max_train_steps": steps})
    full = base.model_copy(update={"objective": objective, "parameters": {**declared, **guessed}})
    return Space(full, inferred, tuple(warnings))
