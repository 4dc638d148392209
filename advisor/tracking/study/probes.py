"""Excludes runs that are not trials: probes (short diagnostic runs) and the report run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from advisor import contract
from advisor.model.space import BoolArray, IntArray
from advisor.system import spill
from advisor.tracking.runs import Experiment, Points


def exclude_probe_runs(experiment: Experiment) -> Experiment:
    """Return the experiment without its probes; if all runs are probes, return only the probes of the most frequent kind.

    A warning says how many runs were excluded. To analyse probes, users select them with a filter.
    """
    kinds = [run.tags.get(contract.TAG_PROBE) for run in experiment.runs]
    if len(set(kinds)) <= 1:
        return experiment
    chosen = None if None in kinds else Counter(kinds).most_common(1)[0][0]
    part = select_runs(experiment, np.array([kind == chosen for kind in kinds], dtype=np.bool_))
    out = len(kinds) - len(part.runs)
    other = next(kind for kind in kinds if kind not in (None, chosen))
    warning = (
        f"{out:,} {'run is' if out == 1 else 'runs are'} of probes and not counted as "
        f"{'trials' if chosen is None else 'its own'}; to see them, --filter \"tags.`{contract.TAG_PROBE}` = '{other}'\"."
    )
    return replace(part, warnings=(*part.warnings, warning))


def exclude_report_runs(experiment: Experiment) -> Experiment:
    """Return the experiment without its report run, which holds the published reports."""
    keep = np.array([contract.TAG_REPORT not in run.tags for run in experiment.runs], dtype=np.bool_)
    return experiment if keep.all() else select_runs(experiment, keep)


def select_runs(experiment: Experiment, keep: BoolArray) -> Experiment:
    """Return the experiment with only the runs that the mask `keep`, shape (runs,), selects, and their points."""
    number = np.cumsum(keep).astype(np.int64) - 1
    fits = experiment.fits_in_memory
    points = {
        metric: part
        for metric, p in experiment.points.items()
        if len((part := _select_points(p, keep, number, fits=fits)).runs)
    }
    runs = tuple(run for run, wanted in zip(experiment.runs, keep, strict=True) if wanted)
    return replace(experiment, runs=runs, points=points)


def _select_points(points: Points, keep: BoolArray, number: IntArray, *, fits: bool) -> Points:
    chosen = keep[points.runs]
    columns = number[points.runs[chosen]], points.steps[chosen], points.values[chosen], points.times[chosen]
    return Points(*spill.move_columns_to_file(columns, fits=fits))
