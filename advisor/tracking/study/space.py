"""Determines the search space of a study: declared, or else inferred from the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.reading import Decision
from advisor.model.spec import MAX_NAME_CHARS, Objective, Parameter, StudySpec
from advisor.model.study import CurveBlock, Trial
from advisor.model.words import clean, listed
from advisor.tracking.runs import Experiment
from advisor.tracking.study import axes, declared, from_study_file, inference

_RESERVED_NAME_CHARS = 100
"""Characters of a study's name that are reserved for the suffixes of later rounds."""
_SHORTENED_STATUSES = ("pruned", "early_stopped")


@dataclass(frozen=True, slots=True)
class StudySpace:
    spec: StudySpec
    inferred: Mapping[str, str]
    """Entries for `Study.inferred`."""
    warnings: tuple[str, ...]
    """About values outside the declared search space."""
    decisions: tuple[Decision, ...] = ()


def build_space(
    experiment: Experiment,
    spec: StudySpec | None,
    objective: Objective,
    trials: Sequence[Trial],
    block: CurveBlock,
    roles: Mapping[str, Parameter],
) -> StudySpace:
    """spec: declared space; block: curves of the objective; roles: undeclared parameters with a known role."""
    params = [t.params for t in trials]
    stated, warnings = from_study_file.check_declared_parameters(spec, params)
    inferred_parameters = {name: p for name, p in inference.infer_parameters(params).items() if name not in stated}
    inferred_parameters |= {name: p for name, p in roles.items() if name in inferred_parameters}
    runs = {run.id: run for run in experiment.runs}
    by_tuner = {
        name: p.model_copy(update={"when": inferred_parameters[name].when})
        for name, p in declared.tuner_parameters([runs[t.id] for t in trials], params).items()
        if name in inferred_parameters and inferred_parameters[name].role not in ("derived", "fixed")
    }
    inferred_parameters |= by_tuner
    inferred = {
        name: "range inferred from the trials" if parameter.searched else str(parameter.why)
        for name, parameter in inferred_parameters.items()
        # The remaining entries describe the objective. The domain of a parameter that never varies need not be inferred.
        if name not in ("objective", "direction", *by_tuner) and (parameter.searched or name in roles)
    }
    name = (experiment.name or "study")[: MAX_NAME_CHARS - _RESERVED_NAME_CHARS]
    base = spec or StudySpec(study=name, objective=objective, trials=len(trials))
    if base.max_train_steps is None:
        base = base.model_copy(update={"max_train_steps": _max_train_steps(trials, block, objective)})
    full_spec = base.model_copy(update={"objective": objective, "parameters": {**stated, **inferred_parameters}})
    decisions = []
    if by_tuner:
        text = f"The tuner's tags declare the range of {listed(map(clean, by_tuner), 6)}."
        decisions.append(Decision(topic="parameters", text=text, overrule="--study FILE"))
    return StudySpace(full_spec, inferred, tuple(warnings), tuple(decisions))


def _max_train_steps(trials: Sequence[Trial], block: CurveBlock, objective: Objective) -> int | None:
    """Return the planned length of training of the trials that trained to their end, of the best one if they differ, or, if all
    were shortened, the longest length, which is a lower bound."""
    lengths = {t.index: axes.curve_length(c) for t in trials if len(c := block.curve(t.index))}
    full_trials = [t for t in trials if t.status == "complete"] or [t for t in trials if t.status not in _SHORTENED_STATUSES]
    if full_trials:
        plans = [t.fact("max_train_steps") for t in full_trials]
        if len({d for d in plans if d >= 1}) > 1:
            sign = 1 if objective.direction == "minimize" else -1
            costs = {t.index: np.min(sign * block.curve(t.index).finite.values, initial=np.inf) for t in full_trials}
            plans = [min(full_trials, key=lambda t: (costs[t.index], t.index)).fact("max_train_steps")]
        return inference.infer_max_steps(plans, [lengths[t.index] for t in full_trials if t.index in lengths])
    plans = [t.fact("max_train_steps") for t in trials]
    longest_length = max([*lengths.values(), *(int(d) for d in plans if math.isfinite(d))], default=0)
    return longest_length if longest_length >= 1 else None
