"""MLflow in, a `Study` out: the only part of `advisor` that reads a tracker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.model.spec import Direction, StudySpec
from advisor.model.study import Study
from advisor.tracking.study.assemble import assemble

if TYPE_CHECKING:
    from advisor.tracking.lineage import Reader


@dataclass(frozen=True, slots=True)
class Rounds:
    """A study and those that it follows from."""

    own: Study
    earlier: tuple[Study, ...]
    """The first round first."""
    said: tuple[str, ...] = ()
    """What became of rounds that cannot be read, one sentence each."""


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
    from advisor.tracking.lineage import Reader

    reader = Reader(tracking_uri, filter, on_progress)
    return _own(reader, experiment, spec, objective, direction)


def read_rounds(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    filter: str | None = None,
    alone: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rounds:
    """As `read_study`, with the studies of the same store that this one follows from, as its study file says.

    alone: see `store.read_experiment`.
    """
    from advisor.tracking.lineage import Reader

    reader = Reader(tracking_uri, filter, on_progress, alone)
    own = _own(reader, experiment, spec, objective, direction)
    return Rounds(own, *reader.ancestors(own))


def runs_url(experiment: str, *, tracking_uri: str | None = None) -> str | None:
    """What the id of a run is added to for its page in MLflow's UI; None where the store is no server."""
    from advisor.tracking import links

    return links.runs_url(experiment, tracking_uri=tracking_uri)


def _own(
    reader: Reader, experiment: str, spec: StudySpec | None, objective: str | None, direction: Direction | None
) -> Study:
    from advisor.tracking.lineage import of_study
    from advisor.tracking.study_tags import noted

    raw = reader.experiment(experiment)
    known = spec or noted(raw.tags)
    # A file written for what others trained may name it otherwise; one that follows from a study must not count that one's trials.
    strict = spec is None or spec.parent is not None
    part = raw if known is None else of_study(raw, known.study, strict=strict)
    return assemble(part, spec=spec, objective=objective, direction=direction)
