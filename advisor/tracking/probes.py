"""Keeps the runs of probes apart from trials: short measurements that share an experiment with them are none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from advisor import contract
from advisor.space import BoolArray, IntArray
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
    place = np.cumsum(keep) - 1
    points = {metric: part for metric, p in experiment.points.items() if len((part := _kept(p, keep, place)).runs)}
    out = len(kinds) - int(keep.sum())
    said = f"{out:,} {'run is' if out == 1 else 'runs are'} of probes and not counted as {'trials' if shown is None else 'its own'}"
    how = f"; to see them, --filter \"tags.`{contract.TAG_PROBE}` = '{next(k for k in kinds if k not in (None, shown))}'\"."
    return replace(
        experiment,
        runs=tuple(run for run, kept in zip(experiment.runs, keep, strict=True) if kept),
        points=points,
        warnings=(*experiment.warnings, said + how),
    )


def _kept(points: Points, keep: BoolArray, place: IntArray) -> Points:
    chosen = keep[points.runs]
    return Points(
        place[points.runs[chosen]].astype(np.int64), points.steps[chosen], points.values[chosen], points.times[chosen]
    )
