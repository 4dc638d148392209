"""Finds the studies of a store and their rounds: which experiment holds which study, and which study follows from which.

A study's file, noted with its experiment, names the study that it follows from. An experiment without one is a study by its own
name. Several studies may share an experiment: a run says whose it is, one that does not is of the study named like the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, StudySpec
from advisor.model.study import Study
from advisor.tracking import study_tags
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import client, mysql, postgres, sqlite
from advisor.tracking.stores.location import Location, locate
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.probes import kept

MOST_ROUNDS = 100
_QUERY = """
    SELECT e.experiment_id, e.name, t.key, t.value FROM experiments e LEFT JOIN experiment_tags t
    ON t.experiment_id = e.experiment_id AND t.key LIKE 'advisor.study_file%'
    WHERE e.lifecycle_stage = 'active' ORDER BY e.experiment_id, t.key
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store holds a study."""

    study: str
    experiment: str
    """The experiment's name."""
    spec: StudySpec | None
    """The study file, where one is noted."""

    @property
    def parent(self) -> str | None:
        """The study that it follows from."""
        return self.spec.parent if self.spec is not None else None


def places(tracking_uri: str | None = None) -> tuple[Place, ...]:
    """The studies of a store, in the order in which their experiments were made."""
    location = locate(tracking_uri)
    found = []
    for name, tags in _experiments(location):
        specs = study_tags.specs_of(tags)
        if name not in {s.study for s in specs}:
            found.append(Place(name, name, None))
        found += [Place(s.study, name, s) for s in specs]
    return tuple(found)


def _experiments(location: Location) -> list[tuple[str, dict[str, str]]]:
    """(name, tags that hold study files) of the experiments that were not deleted."""
    if location.kind == "sqlite":
        with sqlite.connect(location) as connection:
            rows = connection.execute(_QUERY).fetchall()
    elif postgres.is_possible(location):
        with postgres.connect(location) as database:
            rows = database.execute(_QUERY).fetchall()
    elif mysql.is_possible(location):
        with mysql.connect(location) as server:
            rows = list(mysql.query(server, _QUERY))
    else:
        with client.opened(location) as opened:
            return client.experiment_tags(opened)
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for id, name, key, value in rows:
        tags = found.setdefault(str(id), (name, {}))[1]
        if key is not None:
            tags[key] = value
    return list(found.values())


# --- reading ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """Reads studies of one store, each experiment once."""

    tracking_uri: str | None
    filter: str | None = None
    on_progress: Callable[[int, int], None] | None = None
    alone: bool = False
    """See `read_experiment`."""
    _known: dict[str, Experiment] = field(default_factory=dict)
    _places: tuple[Place, ...] | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The studies of the store."""
        if self._places is None:
            self._places = places(self.tracking_uri)
        return self._places

    def experiment(self, name_or_id: str) -> Experiment:
        """All runs of an experiment; raises AdvisorError as `read_experiment` does."""
        if name_or_id not in self._known:
            read = read_experiment(
                name_or_id,
                tracking_uri=self.tracking_uri,
                filter=self.filter,
                alone=self.alone,
                on_progress=self.on_progress,
            )
            self._known[name_or_id] = self._known[read.name] = read
        return self._known[name_or_id]

    def study(self, place: Place, objective: Objective) -> Study:
        """A study's own trials, by an objective; raises AdvisorError where it has none."""
        whole = self.experiment(place.experiment)
        if place.spec is not None and place.spec.objective != objective:
            other = place.spec.objective
            raise AdvisorError(f"its objective was to {other.direction} {other.metric}")
        part = of_study(whole, place.study)
        try:
            return assemble(part, spec=place.spec, objective=objective.metric, direction=objective.direction)
        except AdvisorError:
            if place.spec is None:
                raise
        # The file does not fit its trials: they say themselves what they are.
        bare = replace(part, tags={})
        found = assemble(bare, objective=objective.metric, direction=objective.direction)
        kept_facts = {"study": place.spec.study, "round": place.spec.round, "parent": place.spec.parent}
        return replace(found, spec=found.spec.model_copy(update=kept_facts))

    def ancestors(self, study: Study) -> tuple[tuple[Study, ...], tuple[str, ...]]:
        """The studies that this one follows from, the first round first, and what became of those that cannot be read."""
        found: list[Study] = []
        said: list[str] = []
        seen, wanted = {study.name}, study.spec.parent
        while wanted is not None and wanted not in seen and len(seen) < MOST_ROUNDS:
            seen.add(wanted)
            place = find(self.places, wanted)
            if place is None:
                said.append(f"The study that this one follows from, {wanted}, is in no experiment of this store.")
                break
            try:
                found.insert(0, self.study(place, study.spec.objective))
            except AdvisorError as error:
                said.append(f"The earlier round {wanted} is left out: {error}.")
            wanted = place.parent
        return tuple(found), tuple(said)


def lineages(known: Sequence[Place]) -> list[list[Place]]:
    """The studies in groups that follow from each other, each from its first study on, in the order of their experiments."""
    places = [p for p in known if find(known, p.study) is p]
    first = {p.study: _first(p, places) for p in places}
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(first[place.study], []).append(place)
    return [sorted(group, key=lambda p: _depth(p, places)) for group in groups.values()]


def _line(place: Place, places: Sequence[Place]) -> list[Place]:
    """The study and those that it follows from, the latest first."""
    by_name = {p.study: p for p in places}
    line = [place]
    while (parent := by_name.get(line[-1].parent or "")) is not None and parent not in line:
        line.append(parent)
    return line


def _first(place: Place, places: Sequence[Place]) -> str:
    """The name of the first study of its lineage, or of the one that it says it follows from, which is in no experiment."""
    line = _line(place, places)
    parent = line[-1].parent
    if parent in {p.study for p in line}:  # they follow from each other in a circle, which somebody wrote by hand
        return min(line, key=places.index).study
    return parent if parent is not None else line[-1].study


def _depth(place: Place, places: Sequence[Place]) -> int:
    return len(_line(place, places))


def find(known: Sequence[Place], study: str) -> Place | None:
    """The study of that name, of several the one whose file is noted, of several such the last one."""
    named = [p for p in known if p.study == study]
    return max(reversed(named), key=lambda p: p.spec is not None) if named else None


def of_study(experiment: Experiment, study: str, *, strict: bool = True) -> Experiment:
    """The runs of one study of an experiment, with a warning of how many are of others; all where no run says whose it is.

    strict: raises AdvisorError where runs say whose they are, and none is of this study; else all are.
    """
    names = [run.tags.get(contract.TAG_STUDY, experiment.name) for run in experiment.runs]
    if set(names) == {study} or not any(contract.TAG_STUDY in run.tags for run in experiment.runs):
        return experiment
    if study not in names:
        if not strict:
            return experiment
        others = ", ".join(map(repr, list(dict.fromkeys(names))[-3:]))
        raise AdvisorError(
            f"no run of experiment {experiment.name!r} is of the study {study!r} yet, the last ones are of {others}"
        )
    mine = kept(experiment, np.array([name == study for name in names], dtype=np.bool_))
    out = len(names) - len(mine.runs)
    said = f"{out:,} {'run is' if out == 1 else 'runs are'} of other studies in this experiment, and no trials of this one."
    return replace(mine, warnings=(*mine.warnings, said))
