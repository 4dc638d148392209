"""Finds the studies in a store, their experiments and their earlier rounds. A study file in the experiment's tags names the
preceding study; an experiment without one is a study of its name. Runs of an experiment with several studies name theirs in a
tag, or else belong to the study that has the experiment's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, StudySpec
from advisor.model.study import Study
from advisor.tracking import study_tags
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import open_store, read_experiment
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.probes import select_runs

MAX_EARLIER_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class StudyInExperiment:
    """A study and the MLflow experiment that holds its runs."""

    study: str
    experiment: str
    spec: StudySpec | None

    @property
    def parent(self) -> str | None:
        """Name of the preceding study (the earlier round), or None for a first round."""
        return self.spec.parent if self.spec is not None else None


def places(tracking_uri: str | None = None) -> tuple[StudyInExperiment, ...]:
    """Return all studies of a store, in the order in which their experiments were created."""
    studies = []
    for name, tags in open_store(parse_tracking_uri(tracking_uri)).study_files():
        specs = study_tags.all_stored_specs(tags)
        if name not in {s.study for s in specs}:
            studies.append(StudyInExperiment(name, name, None))
        studies += [StudyInExperiment(s.study, name, s) for s in specs]
    return tuple(studies)


@dataclass
class StudyReader:
    """Reads the studies of one store, and caches experiments so that each is read only once."""

    tracking_uri: str | None
    filter: str | None = None
    on_progress: Callable[[int, int], None] | None = None
    _experiments: dict[str, Experiment] = field(default_factory=dict)

    @cached_property
    def studies_in_store(self) -> tuple[StudyInExperiment, ...]:
        return places(self.tracking_uri)

    def experiment(self, name_or_id: str) -> Experiment:
        """Return an experiment with all its runs. Raises the same AdvisorErrors as `read_experiment`."""
        if name_or_id not in self._experiments:
            uri, on_progress = self.tracking_uri, self.on_progress
            experiment = read_experiment(name_or_id, tracking_uri=uri, filter=self.filter, on_progress=on_progress)
            self._experiments[name_or_id] = self._experiments[experiment.name] = experiment
        return self._experiments[name_or_id]

    def study(self, place: StudyInExperiment, objective: Objective) -> Study:
        """Return a study with only its own trials. Raises AdvisorError if its objective is another one or was not logged."""
        all_runs = self.experiment(place.experiment)
        if place.spec is not None and place.spec.objective != objective:
            own_objective = place.spec.objective
            raise AdvisorError(f"the study's objective was to {own_objective.direction} {own_objective.metric}")
        study_runs = select_study_runs(all_runs, place.study)
        try:
            return assemble(study_runs, spec=place.spec, objective=objective.metric, direction=objective.direction)
        except AdvisorError:
            if place.spec is None:
                raise
        # If the study file does not fit the trials, the search space is inferred from the trials.
        study = assemble(replace(study_runs, tags={}), objective=objective.metric, direction=objective.direction)
        identity = {"study": place.spec.study, "round": place.spec.round, "parent": place.spec.parent}
        return replace(study, spec=study.spec.model_copy(update=identity))

    def earlier_rounds(self, study: Study) -> tuple[tuple[Study, ...], tuple[str, ...]]:
        """Return (earlier rounds of a study, oldest first; one message for each round that could not be read)."""
        studies: list[Study] = []
        notes: list[str] = []
        seen, parent = {study.name}, study.spec.parent
        while parent is not None and parent not in seen and len(seen) < MAX_EARLIER_ROUNDS:
            seen.add(parent)
            place = find_study(self.studies_in_store, parent)
            if place is None:
                notes.append(f"The study {parent}, from which this study was derived, is in no experiment of this store.")
                break
            try:
                studies.insert(0, self.study(place, study.spec.objective))
            except AdvisorError as error:
                notes.append(f"The earlier round {parent} is omitted: {error}.")
            parent = place.parent
        return tuple(studies), tuple(notes)


def lineages(places: Sequence[StudyInExperiment]) -> list[list[StudyInExperiment]]:
    """Group the studies into lineages: sequences of rounds, each derived from the one before. Experiments keep their order."""
    studies = [p for p in places if find_study(places, p.study) is p]
    groups: dict[str, list[StudyInExperiment]] = {}
    for place in studies:
        groups.setdefault(_first_round_name(place, studies), []).append(place)
    return [sorted(group, key=lambda p: len(_study_and_earlier_rounds(p, studies))) for group in groups.values()]


def _study_and_earlier_rounds(place: StudyInExperiment, studies: Sequence[StudyInExperiment]) -> list[StudyInExperiment]:
    """Return the study at `place` and its earlier rounds, latest first."""
    by_name = {p.study: p for p in studies}
    line = [place]
    while (parent := by_name.get(line[-1].parent or "")) is not None and parent not in line:
        line.append(parent)
    return line


def _first_round_name(place: StudyInExperiment, studies: Sequence[StudyInExperiment]) -> str:
    line = _study_and_earlier_rounds(place, studies)
    parent = line[-1].parent
    if parent in {p.study for p in line}:  # study files that were edited by hand can form a cycle
        return min(line, key=studies.index).study
    return parent if parent is not None else line[-1].study


def find_study(places: Sequence[StudyInExperiment], study: str) -> StudyInExperiment | None:
    """Return the last study with this name that has a study file, or else the last one with this name."""
    matching_places = [p for p in places if p.study == study]
    return max(reversed(matching_places), key=lambda p: p.spec is not None) if matching_places else None


def select_study_runs(experiment: Experiment, study: str, *, strict: bool = True) -> Experiment:
    """Return the experiment with only the runs of one study, and a warning that counts the others. Without tags of studies,
    return all runs. strict: whether to raise AdvisorError if tags name only other studies, instead of returning all runs."""
    names = [run.tags.get(contract.TAG_STUDY, experiment.name) for run in experiment.runs]
    if set(names) == {study} or not any(contract.TAG_STUDY in run.tags for run in experiment.runs):
        return experiment
    if study not in names:
        if not strict:
            return experiment
        other_studies = ", ".join(map(repr, list(dict.fromkeys(names))[-3:]))
        raise AdvisorError(
            f"no run of experiment {experiment.name!r} belongs to the study {study!r} yet; the last runs belong to {other_studies}"
        )
    study_runs = select_runs(experiment, np.array([name == study for name in names], dtype=np.bool_))
    out = len(names) - len(study_runs.runs)
    warning = f"{out:,} {'run is' if out == 1 else 'runs are'} of other studies in this experiment, not of this study."
    return replace(study_runs, warnings=(*study_runs.warnings, warning))
