"""Helpers to write small experiments."""

from __future__ import annotations

import numpy as np

from advisor.model.spec import Objective, StudySpec
from advisor.tracking.runs import Experiment, Points, Run


def run(i, status="FINISHED", tags=None, **params):
    return Run(
        id=f"id{i}", name=f"r{i}", status=status, params={k: str(v) for k, v in params.items()}, tags=tags or {}, started=100.0
    )


def points(*rows):
    runs, steps, values, times = zip(*rows, strict=True)
    return Points(np.array(runs), np.array(steps), np.array(values, dtype=float), np.array(times, dtype=float))


def experiment(runs, **metrics):
    return Experiment("e", tuple(runs), {name.replace("__", "/"): p for name, p in metrics.items()})


def declared(**parameters):
    return StudySpec(study="s", objective=Objective(metric="val/loss", direction="minimize"), parameters=parameters)
