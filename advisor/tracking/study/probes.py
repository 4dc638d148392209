"""Keeps runs that share an experiment with trials but are none apart from them: probes, which are short, and reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from advisor import contract
from advisor.model.space import BoolArray, IntArray
from advisor.system import spill
from advisor.tracking.runs import Experiment, Points


def without_probes(experiment: Experiment) -> Experiment:
    """The experiment's trials; where it has none, the runs of the probe that has most.

    A warning says how many runs were left out. A user who wants to see those runs filters for them.
    """
    kinds = [run.tags.get(contract.TAG_PROBE) for run in experiment.runs]
    if len(set(kinds)) <= 1:
        return experiment
    shown = None if None in kinds else Counter(kinds).most_common(1)[0][0]
    keep = np.array([kind == shown for kind in kinds], dtype=np.bool_)
    out = len(kinds) - int(keep.sum())
    said = f"{out:,} {'run is' if out == 1 else 'runs are'} of probes and not counted as {'trials' if shown is None else 'its own'}"
    how = f"; to see them, --filter \"tags.`{contract.TAG_PROBE}` = '{next(k for k in kinds if k not in (None, shown))}'\"."
    chosen = kept(experiment, keep)
    return replace(chosen, warnings=(*chosen.warnings, said + how))


def without_reports(experiment: Experiment) -> Experiment:
    """The experiment without the run that holds reports on it: that one is no trial."""
    keep = np.array([contract.TAG_REPORT not in run.tags for run in experiment.runs], dtype=np.bool_)
    return experiment if keep.all() else kept(experiment, keep)


def kept(experiment: Experiment, keep: BoolArray) -> Experiment:
    """The experiment with those of its runs that `keep` (runs,) marks, and their points."""
    place = np.cumsum(keep) - 1
    few = experiment.few
    points = {
        metric: part for metric, p in experiment.points.items() if len((part := _points(p, keep, place, few)).runs)
    }
    runs = tuple(run for run, wanted in zip(experiment.runs, keep, strict=True) if wanted)
    return replace(experiment, runs=runs, points=points)


def _points(points: Points, keep: BoolArray, place: IntArray, few: bool) -> Points:
    def portion(part: slice) -> tuple[spill.Column, ...]:
        runs = points.runs[part]
        chosen = keep[runs]
        rest = (column[part][chosen] for column in (points.steps, points.values, points.times))
        return place[runs[chosen]].astype(np.int64), *rest

    return Points(*spill.joined(map(portion, spill.portions(points.runs)), most=len(points.runs), few=few))
