"""What MLflow says of a study's runs: which job each is, how far it is, and what became of it; and of the studies before."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advisor import contract
from advisor.execution import claims
from advisor.execution.claims import Claimant
from advisor.execution.jobs import Job, Key
from advisor.execution.record import Entry, Outcome, quoted
from advisor.model.spec import StudySpec
from advisor.tracking.lineage import Place, find, places

_FEW = 8
"""So many trials are asked for one by one, more by reading all runs of the study."""
_ORDER = ("open", "silent", "busy", "done")


class Reading:
    """The runs of one study in one experiment."""

    def __init__(self, client: Any, uri: str, experiment: str, spec: StudySpec, claimant: Claimant) -> None:
        """experiment: its id."""
        self._client, self._uri, self._id, self._spec, self._claimant = client, uri, experiment, spec, claimant

    def runs(self, trial: int | None = None) -> list[Any]:
        """The runs of the study, or of one of its trials."""
        wanted = f"tags.`{contract.TAG_STUDY}` = {quoted(self._spec.study)}"
        return self._found(
            self._id, wanted if trial is None else f"{wanted} AND tags.`{contract.TAG_TRIAL}` = '{trial}'"
        )

    def _found(self, experiment: str, wanted: str) -> list[Any]:
        found, token = [], None
        while True:
            page = self._client.search_runs([experiment], wanted, max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                self._claimant.look_anew()
                return found

    # --- as jobs ----------------------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All jobs that were begun, in the order of their numbers; of one begun twice, what is furthest."""
        found: dict[Key, Entry] = {}
        for entry in self._entries(self.runs()):
            if entry.key not in found or _ORDER.index(found[entry.key].state) < _ORDER.index(entry.state):
                found[entry.key] = entry
        return [found[key] for key in sorted(found)]

    def trainings(self, jobs: Sequence[Job]) -> Mapping[int, list[Entry]]:
        """All trainings of the trials of these jobs that were begun, by trial."""
        trials = {job.number for job in jobs}
        runs = [run for t in trials for run in self.runs(t)] if len(trials) <= _FEW else self.runs()
        found: dict[int, list[Entry]] = defaultdict(list)
        for entry in self._entries(runs):
            found[entry.key[0]].append(entry)
        return found

    def _entries(self, runs: Iterable[Any]) -> Iterable[Entry]:
        return (entry for run in runs if (entry := self._entry(run)) is not None)

    def _entry(self, run: Any) -> Entry | None:
        tags, run_id = run.data.tags, str(run.info.run_id)
        try:
            key = int(tags[contract.TAG_TRIAL]), int(tags[contract.TAG_REPEAT])
        except (KeyError, ValueError):
            return None
        said = claims.read(tags.get(contract.TAG_LAUNCH))
        state = self._claimant.state(run_id, said, run.info.status)
        outcome = self._outcome(run, said) if state == "done" else None
        return Entry(run_id, key, state, run.data.params, tags.get(contract.TAG_SEED, ""), outcome)

    # --- what became of them ----------------------------------------------------------------------------------------------------

    def _outcome(self, run: Any, said: Mapping[str, Any]) -> Outcome:
        best = said["best"] if "best" in said else self.best(run.info.run_id)
        status = run.data.tags.get(contract.TAG_STATUS) or self.status(run)
        return Outcome(status, best, run.data.tags.get(contract.TAG_ERROR))

    def best(self, run_id: str) -> float | None:
        """The best finite value of the objective over the training."""
        objective = self._spec.objective
        values = [m.value for m in self._client.get_metric_history(run_id, objective.metric) if math.isfinite(m.value)]
        return (min if objective.direction == "minimize" else max)(values, default=None)

    def status(self, run: Any) -> str:
        """What the logged objective says of a training that does not say it itself."""
        last = run.data.metrics.get(self._spec.objective.metric)
        return "no_data" if last is None else "complete" if math.isfinite(last) else "diverged"

    # --- the studies before -----------------------------------------------------------------------------------------------------

    def earlier(self) -> list[Entry]:
        """The trials of the studies that this one follows from, the first round's first, as far as they compare: the same
        objective and schedule, as many steps."""
        runs = [run for place in self._before() for run in self._runs_of(place) if self._compares(run)]
        return [
            Entry(str(run.info.run_id), (i, 0), "done", run.data.params, "", self._outcome(run, _said(run)))
            for i, run in enumerate(runs)
        ]

    def _before(self) -> list[Place]:
        """The studies that this one follows from, the first round first, as far as their file says that they compare."""
        known, line = places(self._uri), list[Place]()
        wanted = self._spec.parent
        while wanted is not None and wanted not in {self._spec.study, *(place.study for place in line)}:
            place = find(known, wanted)
            if place is None:
                break
            line.insert(0, place)
            wanted = place.parent
        ours = dict(self._spec.schedule or {})
        return [place for place in line if place.spec is None or dict(place.spec.schedule or {}) == ours]

    def _runs_of(self, place: Place) -> list[Any]:
        """Its runs, oldest first; all of the experiment's, where none says whose it is: somebody's own sweep."""
        experiment = self._client.get_experiment_by_name(place.experiment)
        if experiment is None:
            return []
        runs = self._found(str(experiment.experiment_id), f"tags.`{contract.TAG_STUDY}` = {quoted(place.study)}")
        if not runs and place.spec is None:
            runs = self._found(str(experiment.experiment_id), "")
        return sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))

    def _compares(self, run: Any) -> bool:
        tags, steps = run.data.tags, self._spec.max_train_steps
        ours = {
            contract.TAG_OBJECTIVE: self._spec.objective.metric,
            contract.TAG_DIRECTION: self._spec.objective.direction,
        }
        if steps is not None:
            ours[contract.TAG_MAX_TRAIN_STEPS] = str(steps)
        same = all(tags.get(tag, value) == value for tag, value in ours.items())
        return same and self._is_over(run) and contract.TAG_PROBE not in tags

    def _is_over(self, run: Any) -> bool:
        """Whether a run of another study has ended, and is not to be begun again by its launcher, if it has one."""
        said = _said(run)
        if not said:
            return bool(run.info.status != "RUNNING")
        return self._claimant.state(str(run.info.run_id), said, run.info.status) == "done"


def _said(run: Any) -> dict[str, Any]:
    return claims.read(run.data.tags.get(contract.TAG_LAUNCH))
