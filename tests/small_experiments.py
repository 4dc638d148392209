"""Helpers to write small experiments."""

from __future__ import annotations

import numpy as np

from advisor.model.spec import Objective, StudySpec
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble


def run(i, status="FINISHED", tags=None, *, started=100.0, **params):
    return Run(
        id=f"id{i}",
        name=f"r{i}",
        status=status,
        params={k: str(v) for k, v in params.items()},
        tags=tags or {},
        started=started,
    )


def points(*rows):
    runs, steps, values, times = zip(*rows, strict=True)
    return Points(np.array(runs), np.array(steps), np.array(values, dtype=float), np.array(times, dtype=float))


def curves(lengths, value):
    """Return the points of a metric. lengths: number of evaluations of each run; value: the metric of a run at a step."""
    return points(*((i, s, value(i, s), 100 + s) for i, n in enumerate(lengths) for s in range(1, n + 1)))


def experiment(runs, **metrics):
    return Experiment("e", tuple(runs), {name.replace("__", "/"): p for name, p in metrics.items()})


def study_of(runs, *, objective=None, direction=None, spec=None, reading=None, unfinished=False, **metrics):
    """Return the study of runs with these metrics."""
    return assemble(
        experiment(runs, **metrics), objective=objective, direction=direction, spec=spec, reading=reading, unfinished=unfinished
    )


def statuses(study):
    return [t.status for t in study.trials]


def declared(metric="val/loss", **parameters):
    return StudySpec(study="s", objective=Objective(metric=metric, direction="minimize"), parameters=parameters)
