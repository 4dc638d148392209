"""MLflow in, a `Study` out: the only part of `advisor` that reads a tracking store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advisor.model.spec import Direction, StudySpec
from advisor.model.study import Study
from advisor.tracking import links
from advisor.tracking.lineage import Reader, runs_of_study
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study_tags import latest_spec


@dataclass(frozen=True, slots=True)
class Rounds:
    """A study and the earlier rounds that it follows from."""

    own: Study
    earlier: tuple[Study, ...]
    """The first round first."""
    notes: tuple[str, ...] = ()
    """Why rounds could not be read, one sentence each."""


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
    """Read the study of an MLflow experiment (name or id); see `advisor.analyze` for the arguments. Reading changes nothing."""
    reader = Reader(tracking_uri, filter, on_progress)
    return _read(reader, experiment, spec, objective, direction)


def read_rounds(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    filter: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rounds:
    """As `read_study`, with the studies of the same store that this one follows from, according to its study file."""
    reader = Reader(tracking_uri, filter, on_progress)
    own = _read(reader, experiment, spec, objective, direction)
    return Rounds(own, *reader.ancestors(own))


def runs_url(experiment: str, *, tracking_uri: str | None = None) -> str | None:
    """Return the address of MLflow's UI to which a run's id is appended for its page; None if the store is not a server."""
    return links.runs_url(experiment, tracking_uri=tracking_uri)


def _read(
    reader: Reader, experiment: str, spec: StudySpec | None, objective: str | None, direction: Direction | None
) -> Study:
    everything = reader.experiment(experiment)
    declared = spec or latest_spec(everything.tags)
    # A file written for somebody else's runs may name the study differently; one that follows from a study must not count that
    # study's trials.
    strict = spec is None or spec.parent is not None
    part = everything if declared is None else runs_of_study(everything, declared.study, strict=strict)
    return assemble(part, spec=spec, objective=objective, direction=direction)
