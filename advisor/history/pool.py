"""Finds the trials of earlier rounds that count as data for a later round.

An earlier trial counts if its setting lies in the later round's search space, and if its planned length and the logged facts
about its code, data and training are the same as in the later round. Failed trials can also count as data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.computed.space.inside import meets_condition, trials_in_space
from advisor.model import parameter_kinds
from advisor.model.study import CurveBlock, Study, Trial
from advisor.system import spill

OUTSIDE_SPACE_REASON = "lie outside its search space"

_FACTS_THAT_MUST_AGREE: Mapping[str, str] = {
    "git_commit": "come from another version of the code",
    "n_train": "trained on other data",
    "n_valid": "were evaluated on other data",
    "model": "trained another model",
    "optimizer": "used another optimizer",
    "batch_size": "used another batch size",
    "schedule": "used another learning-rate schedule",
    "precision": "computed in another precision",
    "norm_order": "trained another model",
}
"""Logged facts that must be equal in the earlier and the later round, if both rounds logged them. The values are the phrases by
which a report describes trials with another value."""
_FACTS_THAT_MAY_DIFFER: Mapping[str, Callable[[str], bool]] = {
    "batch_size": parameter_kinds.is_batch_size,
    "optimizer": parameter_kinds.chooses_optimizer,
}
"""Logged facts that may differ between rounds if the study searches the hyperparameter that sets the fact. Otherwise, earlier
trials would be excluded whenever a few later trials had the same value by chance."""
_FACTS_OFF_IF_MISSING = {"grad_clip_norm": "clipped gradients differently", "grad_clip_value": "clipped gradients differently"}
"""Logged facts that must be equal in the earlier and the later round, and whose absence means "switched off". The values are
the phrases by which a report describes trials with another value."""


@dataclass(frozen=True)
class StudyWithEarlierTrials:
    """A study together with the trials of earlier rounds that count as its data."""

    study: Study
    counted: tuple[int, ...]
    """Number of trials of each earlier round that count as data."""
    notes: tuple[str, ...]
    """One sentence for each earlier round, which says how many of the round's trials count as data and why its other trials do
    not count."""


def add_earlier_trials(later: Study, earlier: Sequence[Study]) -> StudyWithEarlierTrials:
    """Return the study with the trials of earlier rounds (oldest first) that count as its data, placed before its own trials."""
    sources: list[tuple[Study, Trial]] = []
    trials_outside: list[Trial] = []
    counted_trials, notes = [], []
    facts = _common_facts(later)
    for number, study in zip(round_numbers([*earlier, later]), earlier, strict=False):
        ended_trials = [t for t in study.trials if study.ended[t.index]]
        problem = _reason_incomparable(later, study)
        exclusions: Counter[str] = Counter()
        for trial in ended_trials:
            reasons = [problem] if problem else list(_exclusion_reasons(later, study, trial, facts))
            if not reasons:
                sources.append((study, _assign_to_round(study, trial, number)))
            else:
                exclusions[reasons[0]] += 1
                trials_outside += [trial] if set(reasons) == {OUTSIDE_SPACE_REASON} else []
        counted_trials.append(len(ended_trials) - exclusions.total())
        notes.append(_round_note(study, number, counted_trials[-1], exclusions))
    if trials_outside:
        later = replace(later, outside=tuple(trials_outside))
    if sources:
        sources += [(later, _assign_to_round(later, trial, None)) for trial in later.trials]
        all_trials = tuple(replace(trial, index=i) for i, (_, trial) in enumerate(sources))
        later = replace(later, trials=all_trials, metrics=_concatenated_metrics(later.metrics, sources))
    return StudyWithEarlierTrials(later, tuple(counted_trials), tuple(notes))


def _concatenated_metrics(names: Iterable[str], sources: Sequence[tuple[Study, Trial]]) -> dict[str, CurveBlock]:
    curves = {name: [study.metric(trial, name) for study, trial in sources] for name in names}
    fits_in_memory = spill.fits_in_memory([len(c) for each in curves.values() for c in each])
    blocks = {}
    for name, each in curves.items():
        columns = tuple(np.concatenate([getattr(c, column) for c in each]) for column in ("steps", "values", "times"))
        offsets = np.cumsum([0, *(len(c) for c in each)]).astype(np.int64)
        steps, values, times = spill.move_columns_to_file(columns, fits=fits_in_memory)
        blocks[name] = CurveBlock(steps, values, times, offsets)
    return blocks


def round_numbers(studies: Sequence[Study]) -> list[int]:
    """Return the round number of each study. If the round numbers in the study files do not ascend, return 1, 2, 3, … instead."""
    declared_numbers = [s.spec.round for s in studies]
    is_ascending = all(a < b for a, b in pairwise(declared_numbers))
    return declared_numbers if is_ascending else list(range(1, len(studies) + 1))


def _assign_to_round(study: Study, trial: Trial, number: int | None) -> Trial:
    name = trial.name if number is None else f"{trial.name} (round {number})"
    return replace(trial, name=name, round=number, facts={"study": study.name, **trial.facts})


def _reason_incomparable(later: Study, study: Study) -> str | None:
    if study.spec.objective != later.spec.objective:
        return "have another objective"
    if later.probe is not None or study.probe is not None:
        return "are probe runs" if study.probe is not None else "are not probe runs"
    if dict(study.spec.schedule or {}) != dict(later.spec.schedule or {}):
        return "used another learning-rate schedule"
    return None


def _exclusion_reasons(later: Study, study: Study, trial: Trial, facts: Mapping[str, str | None]) -> Iterator[str]:
    params = later.spec.with_computed_values(trial.params)
    logged_names = {name for t in later.trials for name in t.params}
    for name, parameter in later.spec.parameters.items():
        if name in params or parameter.role == "derived" or not meets_condition(parameter, params):
            continue
        old = study.spec.parameters.get(name)
        if parameter.searched or (name in logged_names and (old is None or old.value != parameter.value)):
            yield f"had no {name}"
    if not trials_in_space(later.spec, [trial]):
        yield OUTSIDE_SPACE_REASON
    planned_steps, own_steps = study.planned_steps(trial), later.spec.max_train_steps
    if own_steps is not None and math.isfinite(planned_steps) and planned_steps != own_steps:
        yield f"trained for {planned_steps:,.0f} steps instead of {own_steps:,}"
    for name, reason in {**_FACTS_THAT_MUST_AGREE, **_FACTS_OFF_IF_MISSING}.items():
        is_recorded = name in trial.facts or (name in _FACTS_OFF_IF_MISSING and "schema" in trial.facts)
        if name in facts and trial.facts.get(name) != facts[name] and is_recorded:
            yield reason


def _common_facts(later: Study) -> dict[str, str | None]:
    """Return the logged facts that have the same value in all trials that logged them; None for a fact that none logged."""
    varying = {name for name, varies in _FACTS_THAT_MAY_DIFFER.items() if any(map(varies, later.searched))}
    values: dict[str, set[str | None]] = {}
    for name in _FACTS_THAT_MUST_AGREE.keys() - varying:
        values[name] = {t.facts[name] for t in later.trials if name in t.facts}
    for name in _FACTS_OFF_IF_MISSING:
        values[name] = {t.facts.get(name) for t in later.trials if "schema" in t.facts}
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1}


def _round_note(study: Study, number: int, counted: int, others_by_reason: Counter[str]) -> str:
    total, name = counted + others_by_reason.total(), f"round {number} ({study.name})"
    if not total:
        return f"No trial of {name} has ended."
    reasons = ", ".join(f"{n:,} {why}" for why, n in sorted(others_by_reason.items(), key=lambda item: (-item[1], item[0])))
    if not counted:
        return f"No trial of {name} counts as data for this round: {reasons}."
    trials = f"{counted:,} of the {total:,} trials" if others_by_reason else f"All {total:,} trials"
    trials = "The one trial" if total == 1 else trials
    verb = "lies in this search space and counts" if counted == 1 else "lie in this search space and count"
    return f"{trials} of {name} {verb} as data{f'; {reasons}' if reasons else ''}."
