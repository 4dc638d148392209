"""Excludes runs that are not trials: probes (short diagnostic runs), the report run, sweep parents and evaluation runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor import contract
from advisor.model.space import BoolArray, IntArray
from advisor.system import spill
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study import inference

PARENT_RUN_TAG = "mlflow.parentRunId"


def exclude_probe_runs(experiment: Experiment) -> Experiment:
    """Exclude probes, with a warning, or, if there are only probes, all but the most frequent kind."""
    probe_kinds = [run.tags.get(contract.TAG_PROBE) for run in experiment.runs]
    if len(set(probe_kinds)) <= 1:
        return experiment
    chosen_kind = None if None in probe_kinds else Counter(probe_kinds).most_common(1)[0][0]
    chosen_runs = select_runs(experiment, np.array([kind == chosen_kind for kind in probe_kinds], dtype=np.bool_))
    out = len(probe_kinds) - len(chosen_runs.runs)
    other_kind = next(kind for kind in probe_kinds if kind not in (None, chosen_kind))
    warning = (
        f"{out:,} {'run is' if out == 1 else 'runs are'} of probes and not counted as "
        f"{'trials' if chosen_kind is None else 'its own'}; to see them, --filter \"tags.`{contract.TAG_PROBE}` = '{other_kind}'\"."
    )
    return replace(chosen_runs, warnings=(*chosen_runs.warnings, warning))


def exclude_report_runs(experiment: Experiment) -> Experiment:
    is_kept = np.array([contract.TAG_REPORT not in run.tags for run in experiment.runs], dtype=np.bool_)
    return experiment if is_kept.all() else select_runs(experiment, is_kept)


def select_runs(experiment: Experiment, keep: BoolArray) -> Experiment:
    """Return the experiment with only the runs (and their points) in the mask `keep`, shape (runs,)."""
    number = np.cumsum(keep).astype(np.int64) - 1
    fits_in_memory = experiment.fits_in_memory
    points = {}
    for metric, p in experiment.points.items():
        if (chosen := keep[p.runs]).any():
            columns = number[p.runs[chosen]], p.steps[chosen], p.values[chosen], p.times[chosen]
            points[metric] = Points(*spill.move_columns_to_file(columns, fits=fits_in_memory))
    runs = tuple(run for run, wanted in zip(experiment.runs, keep, strict=True) if wanted)
    return replace(experiment, runs=runs, points=points)


def find_trial_runs(experiment: Experiment, objective: str) -> tuple[IntArray, list[str]]:
    """Return the indices of the trials, and warnings that count the excluded sweep parents and evaluation runs."""
    children: dict[str, list[Run]] = {}
    for run in experiment.runs:
        if PARENT_RUN_TAG in run.tags:
            children.setdefault(run.tags[PARENT_RUN_TAG], []).append(run)
    with_objective = {experiment.runs[i].id for i in np.unique(experiment.points[objective].runs)}
    parents = {run.id for run in experiment.runs if run.id in children}
    parents -= {r.id for r in experiment.runs if r.id in parents & with_objective and _is_trial(r, children[r.id])}
    indices = [i for i, run in enumerate(experiment.runs) if run.id not in parents]
    warnings = []
    if parents:
        subject = "run is the parent of other runs and is" if len(parents) == 1 else "runs are parents of other runs and are"
        warnings.append(f"{len(parents):,} {subject} not counted as a trial.")
    if evaluations := _find_evaluation_runs(experiment, indices):
        indices = [i for i in indices if i not in evaluations]
        one = len(evaluations) == 1
        subject = (
            "run contains one evaluation and no parameters" if one else "runs contain one evaluation each and no parameters"
        )
        warnings.append(f"{len(evaluations):,} {subject}, and {'is' if one else 'are'} not counted as a trial.")
    return np.array(indices, dtype=np.int64), warnings


def _is_trial(parent: Run, children: Sequence[Run]) -> bool:
    """Return whether a parent run is a trial: its children vary a hyperparameter that it logged, or none, as folds or repeats
    do. The parent of a sweep is no trial, even if it logs the sweep's best value, or the best child's setting in all
    hyperparameters that the children vary."""
    own, *trials = inference.parse_params([parent.params, *(run.params for run in children)])
    names = {name for trial in trials for name in trial}
    varied_names = {name for name in names if len({t[name] for t in trials if name in t}) > 1}
    repeats_a_child = varied_names <= own.keys() and any(all(t.get(n) == own[n] for n in varied_names) for t in trials)
    return not varied_names or (bool(varied_names & set(parent.params)) and not repeats_a_child)


def _find_evaluation_runs(experiment: Experiment, indices: Sequence[int]) -> set[int]:
    """Return the runs that a tool created only to evaluate a trained model: without parameters, with one point per metric,
    beside trials with parameters and longer curves. A trial that was just launched has the tag `TAG_TRIAL`."""
    without_params = {i for i in indices if not experiment.runs[i].params and contract.TAG_TRIAL not in experiment.runs[i].tags}
    if not without_params or 2 * len(without_params) > len(indices):
        return set()
    with_curves: set[int] = set()
    for points in experiment.points.values():
        runs, counts = np.unique(points.runs, return_counts=True)
        with_curves.update(runs[counts > 1].tolist())
    return without_params - with_curves if with_curves - without_params else set()
