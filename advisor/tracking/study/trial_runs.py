"""Selects the runs of an experiment that are trials, and excludes sweep parents and evaluation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.model.space import IntArray
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import inference

_PARENT_TAG = "mlflow.parentRunId"


@dataclass(frozen=True, slots=True)
class TrialRuns:
    """The runs of an experiment that are trials."""

    trial_indices: IntArray
    """Indices of the trials in `Experiment.runs`."""
    warnings: tuple[str, ...]


def find_trial_runs(experiment: Experiment, objective: str) -> TrialRuns:
    """Return the runs that are trials, and warnings that count the excluded runs."""
    indices = _runs_without_parents(experiment, objective)
    warnings = []
    if parents := len(experiment.runs) - len(indices):
        subject = "run is the parent of other runs and is" if parents == 1 else "runs are parents of other runs and are"
        warnings.append(f"{parents:,} {subject} not counted as a trial.")
    if evaluations := _find_evaluation_runs(experiment, indices):
        indices = [i for i in indices if i not in evaluations]
        subject = (
            "run contains one evaluation and no parameters, and is"
            if len(evaluations) == 1
            else "runs contain one evaluation each and no parameters, and are"
        )
        warnings.append(f"{len(evaluations):,} {subject} not counted as a trial.")
    return TrialRuns(np.array(indices, dtype=np.int64), tuple(warnings))


def _runs_without_parents(experiment: Experiment, objective: str) -> list[int]:
    children: dict[str, list[Run]] = {}
    for run in experiment.runs:
        if _PARENT_TAG in run.tags:
            children.setdefault(run.tags[_PARENT_TAG], []).append(run)
    with_objective = set(experiment.points[objective].runs.tolist())
    return [
        i
        for i, run in enumerate(experiment.runs)
        if run.id not in children or (i in with_objective and _is_trial(run, children[run.id]))
    ]


def _is_trial(parent: Run, children: Sequence[Run]) -> bool:
    """Return whether a parent run is a trial: its children vary a hyperparameter that the parent logged, or vary no
    hyperparameter.

    Child runs that vary no hyperparameter are folds or repeats of their parent. A sweep's parent run is not a trial, even if it
    logs the sweep's best value.
    """
    trials = inference.parse_params([run.params for run in children])
    names = {name for trial in trials for name in trial}
    varied = {name for name in names if len({t[name] for t in trials if name in t}) > 1}
    return not varied or bool(varied & set(parent.params))


def _find_evaluation_runs(experiment: Experiment, indices: Sequence[int]) -> set[int]:
    """Return the indices of runs that a tool created only to evaluate a trained model.

    Evaluation runs have no parameters and one point per metric, while the experiment's trials have parameters and longer
    curves. A trial that a launcher has just created also has no parameters for a moment, but it has the tag `TAG_TRIAL`.
    """
    without_params = {i for i in indices if not experiment.runs[i].params and contract.TAG_TRIAL not in experiment.runs[i].tags}
    if not without_params or 2 * len(without_params) > len(indices):
        return set()
    with_curves: set[int] = set()
    for points in experiment.points.values():
        runs, counts = np.unique(points.runs, return_counts=True)
        with_curves.update(runs[counts > 1].tolist())
    return without_params - with_curves if with_curves - without_params else set()
