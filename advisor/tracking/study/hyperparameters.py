"""Removes logged parameters that are not hyperparameters: measurements, run names, and parameters that the user wants to
ignore.

Parameters are removed before all other decisions, so that all decisions agree on which runs have the same setting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from advisor.model.reading import Decision, Reading
from advisor.model.space import as_number
from advisor.model.spec import StudySpec
from advisor.model.words import clean, listed
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study.measurements import is_measurement


def drop_non_hyperparameters(
    experiment: Experiment, spec: StudySpec | None, reading: Reading
) -> tuple[Experiment, tuple[Decision, ...]]:
    """Return the experiment without the parameters that are not hyperparameters, and the decisions about them."""
    measured = _measured_parameters(experiment, spec)
    left_out = measured | _run_name_parameters(experiment.runs) | set(reading.ignore)
    runs = tuple(
        replace(run, params={n: v for n, v in run.params.items() if n not in left_out}) if left_out & run.params.keys() else run
        for run in experiment.runs
    )
    return replace(experiment, runs=runs), tuple(_decisions(measured, reading))


def _decisions(measured: Collection[str], reading: Reading) -> Iterator[Decision]:
    if measured:
        names = listed((clean(n) for n in sorted(measured)), 6)
        text = f"Measured instead of set, so not hyperparameters: {names}."
        yield Decision(topic="parameters", text=text, overrule="--study FILE with these parameters")
    if reading.ignore:
        names = listed((clean(n) for n in reading.ignore), 6)
        yield Decision(topic="parameters", text=f"Ignored, as you asked: {names}.", overrule=None)


def _run_name_parameters(runs: Sequence[Run]) -> set[str]:
    """Return the parameters whose value equals the run's name in most of the runs that have the parameter, and in at least two
    runs."""
    equal = Counter(name for run in runs for name, value in run.params.items() if value == run.name)
    return {name for name, n in equal.items() if n >= 2 and 2 * n > sum(name in run.params for run in runs)}


def _measured_parameters(experiment: Experiment, spec: StudySpec | None) -> set[str]:
    """Return the parameters that are measurements according to their names, are not declared, and have only numbers as values."""
    names = {n for run in experiment.runs for n in run.params} - (spec.parameters.keys() if spec is not None else set())
    return {
        name
        for name in names
        if is_measurement(name, experiment.points.keys())
        and all(math.isfinite(as_number(run.params[name])) for run in experiment.runs if name in run.params)
    }
