"""MLflow in, a `Study` out: the only part of `advisor` that reads a tracker."""

from __future__ import annotations

from collections.abc import Callable

from advisor.spec import Direction, StudySpec
from advisor.study import Study
from advisor.tracking.assemble import assemble


def read_study(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    filter: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Study:
    """The study that an MLflow experiment (name or id) is; see `advisor.analyze` for the arguments. Reading writes nothing."""
    from advisor.tracking.store import read_experiment

    raw = read_experiment(experiment, tracking_uri=tracking_uri, filter=filter, on_progress=on_progress)
    return assemble(raw, spec=spec, objective=objective, direction=direction)
