"""Reads an MLflow experiment and returns a `Study`. No other part of `advisor` reads from a tracking store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, Unpack

from advisor.model.reading import Reading
from advisor.model.spec import Direction, StudySpec
from advisor.model.study import Study
from advisor.tracking.lineage import StudyReader, select_study_runs
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.lookup import choose_experiment
from advisor.tracking.stores.reading import open_store
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study_tags import latest_spec


@dataclass(frozen=True, slots=True)
class StudyRounds:
    """A study and its earlier rounds, which are the studies that it was derived from."""

    own: Study
    earlier_studies: tuple[Study, ...]
    """The earlier rounds, oldest first."""
    notes: tuple[str, ...] = ()
    """One sentence about each earlier round that could not be read."""


class ReadOptions(TypedDict, total=False):
    """How to read an experiment; see `advisor.analyze` for the fields."""

    tracking_uri: str | None
    spec: StudySpec | None
    objective: str | None
    direction: Direction | None
    filter: str | None
    reading: Reading | None
    on_progress: Callable[[int, int], None] | None
    unfinished: bool


def read_study(experiment: str, **options: Unpack[ReadOptions]) -> Study:
    """Read the study of an MLflow experiment (name or id) without changing it."""
    return _read_own_study(experiment, **options)[1]


def read_rounds(experiment: str, **options: Unpack[ReadOptions]) -> StudyRounds:
    """Read a study and its earlier rounds. The study file names the earlier rounds, and the same store must hold them."""
    reader, own = _read_own_study(experiment, **options)
    return StudyRounds(own, *reader.earlier_rounds(own))


def runs_url(experiment: str, *, tracking_uri: str | None = None) -> str | None:
    """Return the URL of run pages in MLflow's UI, without run id and credentials, or None if the store is no server."""
    location = parse_tracking_uri(tracking_uri)
    if location.kind != "server":
        return None
    return location.run_page_prefix(choose_experiment(experiment, open_store(location).experiments(), location).id)


def _read_own_study(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    filter: str | None = None,
    reading: Reading | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    unfinished: bool = False,
) -> tuple[StudyReader, Study]:
    reader = StudyReader(tracking_uri, filter, on_progress)
    all_runs = reader.experiment(experiment)
    declared_spec = spec or latest_spec(all_runs.tags)
    # A study file that the user passes may have another name than the runs' tags; all runs are then analysed.
    # If the study has an earlier round, the names must agree, because trials of the earlier round must not count.
    strict = spec is None or spec.parent is not None
    study_runs = all_runs if declared_spec is None else select_study_runs(all_runs, declared_spec.study, strict=strict)
    study = assemble(study_runs, spec=spec, objective=objective, direction=direction, reading=reading, unfinished=unfinished)
    return reader, study
