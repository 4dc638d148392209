"""Assembles a study from the logs of trainings in memory, as the advisor would read the study from a store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor import contract
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble
from loop.task import Outcome


def study(spec: StudySpec, outcomes: Sequence[Outcome], seeds: Sequence[int]) -> Study:
    """Return the study of these trainings, which are in the order in which they ran."""
    runs = [
        Run(
            id=f"trial-{i}",
            name=f"trial-{i}",
            status="FINISHED",
            params={k: repr(v) if isinstance(v, float) else str(v) for k, v in done.params.items()},
            tags={contract.TAG_STATUS: done.status, contract.TAG_SEED: str(seed), **done.facts},
            started=60.0 * i,
        )
        for i, (done, seed) in enumerate(zip(outcomes, seeds, strict=True))
    ]
    metrics = sorted({metric for done in outcomes for metric in done.curves})
    points = {metric: _points(metric, outcomes) for metric in metrics}
    return assemble(Experiment(name=spec.study, runs=tuple(runs), points=points), spec=spec)


def _points(metric: str, outcomes: Sequence[Outcome]) -> Points:
    curves = [(i, *done.curves[metric]) for i, done in enumerate(outcomes) if metric in done.curves]
    steps = np.concatenate([steps for _, steps, _ in curves]).astype(np.int64)
    values = np.concatenate([values for _, _, values in curves]).astype(np.float64)
    runs = np.concatenate([np.full(len(steps), i) for i, steps, _ in curves]).astype(np.int64)
    return Points(runs, steps, values, 60.0 * runs + 0.01 * steps)
