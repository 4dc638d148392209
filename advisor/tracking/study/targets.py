"""Recognises trials that stopped when the objective reached a target; the results of such trials are equal by design."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.model import parameter_kinds
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import clean, number

MIN_TRIALS_AT_TARGET = 3
"""Minimum number of trials that stopped at a target. Our choice."""
MIN_EVALUATIONS_TO_TARGET = 3
MIN_TRIAL_LENGTH_RATIO = 1.1
"""Minimum ratio of the longest to the shortest trial; trials of equal length are compared by results. Our choice."""
MIN_FULL_LENGTH_FRACTION = 0.9
"""Minimum length, as a share of the longest trial, that had enough time to reach the target."""


def add_reached_target(study: Study) -> Study:
    """Return the study with the target at which its trials stopped, if any, and a warning about it."""
    trials_at_target = _find_trials_at_target([t for t in study.trials if study.comparable[t.index]], study)
    if not trials_at_target:
        return study
    target_steps = sorted((int(study.cost_curve(t).finite.steps[-1]), t.name) for t in trials_at_target)
    target = study.objective_value(max(float(study.cost_curve(t).finite.values[-1]) for t in trials_at_target))
    metric = clean(study.spec.objective.metric)
    text = (
        f"Training stopped when {metric} reached about {number(target)}, in {len(trials_at_target)} trials, so their results are "
        f"equal by design: compare the {study.unit}s to it. {clean(target_steps[0][1])} needed the fewest, {target_steps[0][0]:,}; "
        f"{clean(target_steps[-1][1])} needed {target_steps[-1][0]:,}."
    )
    return replace(study, target=target, warnings=(*study.warnings, text))


def _find_trials_at_target(trials: list[Trial], study: Study) -> list[Trial]:
    """Return the trials that ended at their first evaluation beyond a level, if all others had time to reach it."""
    curves = [
        (t, c)
        for t in trials
        if len(c := study.cost_curve(t).finite) >= MIN_EVALUATIONS_TO_TARGET
        # The planned steps had room for another evaluation, or are unknown.
        and not float(c.steps[-1]) + float(np.diff(c.steps).max()) > t.fact("max_train_steps")
    ]
    if len(curves) < MIN_TRIALS_AT_TARGET:
        return []
    steps = np.array([float(c.steps[-1]) for _, c in curves])
    last_costs = np.array([c.values[-1] for _, c in curves])
    best_costs_before = np.array([c.values[:-1].min() for _, c in curves])
    for level in np.unique(last_costs)[::-1]:
        has_reached = last_costs <= level
        if has_reached.sum() < MIN_TRIALS_AT_TARGET:
            break
        had_time = steps >= MIN_FULL_LENGTH_FRACTION * steps.max()
        is_worse = np.minimum(last_costs, best_costs_before) > level
        curves_at_target = [curve for curve, yes in zip(curves, has_reached, strict=True) if yes]
        is_target = (best_costs_before > level)[has_reached].all() and (is_worse & had_time)[~has_reached].all()
        if is_target and _are_lengths_different(curves_at_target):
            return [t for t, _ in curves_at_target]
    return []


def _are_lengths_different(curves: Sequence[tuple[Trial, Curve]]) -> bool:
    """Return whether steps, evaluations and examples differ; steps alone can differ by the batch size."""
    steps = np.array([float(c.steps[-1]) for _, c in curves])
    examples = steps * np.array([parameter_kinds.batch_size(t) for t, _ in curves])
    evaluations = np.array([float(len(c)) for _, c in curves])
    length_measures = [steps, evaluations, *([examples] if np.isfinite(examples).all() else [])]
    return all(len(set(m)) >= MIN_TRIALS_AT_TARGET and m.max() >= MIN_TRIAL_LENGTH_RATIO * m.min() for m in length_measures)
