"""Reads the MLflow runs of a study as jobs, each with its key, state and outcome, and the runs of preceding studies."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advisor import contract
from advisor.contract.guard_stop import read_guard_stop
from advisor.execution.job import Job, Key
from advisor.execution.ledger import claims
from advisor.execution.ledger.claims import JobClaimer
from advisor.execution.ledger.record import JobEntry, JobOutcome, quote_study_name
from advisor.execution.ledger.retries import RetryPolicy, missing_objective_reason
from advisor.model.spec import StudySpec
from advisor.tracking.lineage import StudyInExperiment, find_study, places

_MAX_TRIALS_QUERIED_SINGLY = 8
"""Maximum number of trials whose runs are queried one by one. If there are more trials, one query reads all runs of the study."""
_STATES_BY_PROGRESS = ("open", "silent", "busy", "done")


class StudyRuns:
    """The MLflow runs of one study in one MLflow experiment."""

    def __init__(
        self, client: Any, uri: str, experiment_id: str, spec: StudySpec, claimant: JobClaimer, retry: RetryPolicy
    ) -> None:
        self._client, self._uri, self._id, self._spec, self._claimant = client, uri, experiment_id, spec, claimant
        self._retry = retry
        self._again: frozenset[str] | None = None
        """Ids of the runs whose trials are begun again; None before the first read. The first read fixes these ids, so trials
        that fail later are not begun again."""
        self.continued: set[str] = set()
        """Ids of the runs that were stopped early and that this launch will continue. The id of a resumed run is removed from
        the set."""

    def runs(self, trial: int | None = None) -> list[Any]:
        """Return all runs of the study, or only those of one trial."""
        of_study = f"tags.`{contract.TAG_STUDY}` = {quote_study_name(self._spec.study)}"
        of_trial = "" if trial is None else f" AND tags.`{contract.TAG_TRIAL}` = '{trial}'"
        return self._search_runs(self._id, of_study + of_trial)

    def _search_runs(self, experiment_id: str, filter: str) -> list[Any]:
        runs, token = [], None
        while True:
            page = self._client.search_runs([experiment_id], filter, max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                self._claimant.refresh_slurm()
                return runs

    def entries(self) -> list[JobEntry]:
        """Return all begun jobs, sorted by number. If a job was begun twice, its run with the most progress counts."""
        entries: dict[Key, JobEntry] = {}
        runs = self.runs()
        if self._again is None:
            again = frozenset(self._runs_to_retry(runs))
            if (
                self._retry.trials == "all"
            ):  # decide for all runs at once, so that an interrupted launch can be resumed without `--retry all`
                for run_id in again:
                    self.delete(run_id)
                runs = self.runs()
            self._again = again
        for entry in self._read_entries(runs):
            before = entries.get(entry.key)
            if before is None or _STATES_BY_PROGRESS.index(before.state) < _STATES_BY_PROGRESS.index(entry.state):
                entries[entry.key] = entry
        return [entries[key] for key in sorted(entries)]

    def delete(self, run_id: str) -> None:
        """Delete a run in MLflow, which can restore it; another launcher may already have deleted it."""
        if self._client.get_run(run_id).info.lifecycle_stage == "active":
            self._client.delete_run(run_id)

    def entries_by_trial(self, jobs: Sequence[Job]) -> Mapping[int, list[JobEntry]]:
        """Return all runs that were begun for the trials of these jobs, grouped by trial."""
        trials = {job.number for job in jobs}
        runs = [run for t in trials for run in self.runs(t)] if len(trials) <= _MAX_TRIALS_QUERIED_SINGLY else self.runs()
        trainings: dict[int, list[JobEntry]] = defaultdict(list)
        for entry in self._read_entries(runs):
            trainings[entry.key[0]].append(entry)
        return trainings

    def _read_entries(self, runs: Sequence[Any]) -> Iterator[JobEntry]:
        for run in runs:
            tags, run_id = run.data.tags, str(run.info.run_id)
            try:
                key = int(tags[contract.TAG_TRIAL]), int(tags[contract.TAG_REPEAT])
            except (KeyError, ValueError):
                continue
            claim = _read_run_claim(run)
            state = self._claimant.state(run_id, claim, run.info.status)
            if state == "done" and (run_id in (self._again or ()) or run_id in self.continued):
                state = "open"
            outcome = self._outcome(run, claim) if state == "done" else None
            continued = tags.get(contract.TAG_CONTINUED_AFTER_STOP) or (
                tags.get(contract.TAG_GUARD_STOP, "") if run_id in self.continued else ""
            )
            seed = tags.get(contract.TAG_SEED, "")
            yield JobEntry(run_id, key, state, run.data.params, seed, outcome, continued, _resumes_from_checkpoint(tags))

    def stopped(self) -> dict[str, JobEntry]:
        """Return the jobs that were stopped early, keyed by the names of their runs."""
        runs = [run for run in self.runs() if contract.TAG_GUARD_STOP in run.data.tags]
        names = {str(run.info.run_id): str(run.info.run_name) for run in runs}
        return {names[entry.run_id]: entry for entry in self._read_entries(runs) if entry.state == "done"}

    def _runs_to_retry(self, runs: Sequence[Any]) -> Iterator[str]:
        """Yield the ids of the runs whose trials this launch begins again because of their statuses."""
        claimed = [(run, str(run.info.run_id), _read_run_claim(run)) for run in runs]
        states = {run_id: self._claimant.state(run_id, claim, run.info.status) for run, run_id, claim in claimed}
        working = {c["launcher"] for _, run_id, c in claimed if states[run_id] in ("busy", "silent") and "launcher" in c}
        for run, run_id, claim in claimed:
            works = claim.get("launcher") in working or self._claimant.is_launcher_running(claim)
            ended = states[run_id] == "done" and (self._retry.trials == "failed" or not works)
            if ended and self._retry.begins_trial_again(self._read_run_status(run), run.data.metrics):
                yield run_id

    def _outcome(self, run: Any, claim: Mapping[str, Any]) -> JobOutcome:
        status = self._read_run_status(run)
        best = claim.get("best")
        corrected = best is None and run.data.tags.get(contract.TAG_STATUS) == "no_data" and self.has_objective(run)
        if "best" not in claim or corrected:
            best = self.best(run.info.run_id)
        return JobOutcome(status, best, self.error(run, status))

    def _read_run_status(self, run: Any) -> str:
        """Return the recorded status of a run. Infer the status if none is recorded, or if the objective in the study file has
        since been corrected to a logged metric."""
        status = run.data.tags.get(contract.TAG_STATUS)
        return self.status(run) if status is None or (status == "no_data" and self.has_objective(run)) else str(status)

    def error(self, run: Any, status: str) -> str | None:
        """Return the recorded error of a run. If no error is recorded, return the reason why the objective has no value, or
        None."""
        stop = read_guard_stop(run.data.tags.get(contract.TAG_GUARD_STOP))
        if stop is not None:
            return stop.reason or None
        error: str | None = run.data.tags.get(contract.TAG_ERROR)
        if error is not None or status != "no_data":
            return error
        stated = run.data.tags.get(contract.TAG_OBJECTIVE)
        return missing_objective_reason(self._spec.objective.metric, run.data.metrics, stated)

    def best(self, run_id: str) -> float | None:
        """Return the best finite value of the objective that the run logged."""
        objective = self._spec.objective
        values = [m.value for m in self._client.get_metric_history(run_id, objective.metric) if math.isfinite(m.value)]
        return (min if objective.direction == "minimize" else max)(values, default=None)

    def has_objective(self, run: Any) -> bool:
        """Return whether the run logged the study's objective. The training script may have declared another objective."""
        return self._spec.objective.metric in run.data.metrics

    def status(self, run: Any) -> str:
        """Infer the status of a run that logged no status from its last value of the objective."""
        last = run.data.metrics.get(self._spec.objective.metric)
        return "no_data" if last is None else "complete" if math.isfinite(last) else "diverged"

    def earlier(self) -> list[JobEntry]:
        """Return the comparable trials of the preceding studies, oldest round first.

        Trials are comparable if they have the same objective, learning-rate schedule and number of steps as this study.
        """
        runs = [run for place in self._preceding_studies() for run in self._find_study_runs(place) if self._is_comparable(run)]
        return [
            JobEntry(str(run.info.run_id), (i, 0), "done", run.data.params, "", self._outcome(run, _read_run_claim(run)))
            for i, run in enumerate(runs)
        ]

    def _preceding_studies(self) -> list[StudyInExperiment]:
        """Return the studies that precede this one, oldest round first. Probes (short diagnostic runs) and studies with another
        declared schedule are skipped."""
        known, line = places(self._uri), list[StudyInExperiment]()
        parent = self._spec.parent
        while parent is not None and parent not in {self._spec.study, *(place.study for place in line)}:
            place = find_study(known, parent)
            if place is None:
                break
            line.insert(0, place)
            parent = place.parent
        schedule = dict(self._spec.schedule or {})
        return [place for place in line if place.spec is None or _is_comparable_study(place.spec, schedule)]

    def _find_study_runs(self, place: StudyInExperiment) -> list[Any]:
        """Return the runs of the study, oldest first. If no run of the experiment names a study, all runs of the experiment are
        returned."""
        experiment = self._client.get_experiment_by_name(place.experiment)
        if experiment is None:
            return []
        runs = self._search_runs(
            str(experiment.experiment_id), f"tags.`{contract.TAG_STUDY}` = {quote_study_name(place.study)}"
        )
        if not runs and place.spec is None:
            runs = self._search_runs(str(experiment.experiment_id), "")
        return sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))

    def _is_comparable(self, run: Any) -> bool:
        tags, steps = run.data.tags, self._spec.max_train_steps
        expected = dict[str, str]()
        if not self._has_corrected_objective(run):
            expected[contract.TAG_OBJECTIVE] = self._spec.objective.metric
            expected[contract.TAG_DIRECTION] = self._spec.objective.direction
        if steps is not None:
            expected[contract.TAG_MAX_TRAIN_STEPS] = str(steps)
        same = all(tags.get(tag, value) == value for tag, value in expected.items())
        return same and self._has_ended(run) and contract.TAG_PROBE not in tags

    def _has_corrected_objective(self, run: Any) -> bool:
        """Return True if the run logged the present objective of the study, but never the objective with which it was begun."""
        return self.has_objective(run) and run.data.tags.get(contract.TAG_OBJECTIVE) not in run.data.metrics

    def _has_ended(self, run: Any) -> bool:
        """Return True if a run of another study has ended and no launcher will begin its job again."""
        claim = _read_run_claim(run)
        if not claim:
            return bool(run.info.status != "RUNNING")
        return self._claimant.state(str(run.info.run_id), claim, run.info.status) == "done"


def _is_comparable_study(spec: StudySpec, schedule: Mapping[str, Any]) -> bool:
    """Return whether a study has this learning-rate schedule and is no probe (a short diagnostic run), so that its trials may
    be comparable."""
    return spec.probe is None and dict(spec.schedule or {}) == schedule


def _resumes_from_checkpoint(tags: Mapping[str, str]) -> bool:
    """Return whether a training run saved a checkpoint and can resume from it."""
    try:
        content = json.loads(tags.get(contract.TAG_CHECKPOINTS, ""))
        return bool(content["resumes"] and content["kept"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _read_run_claim(run: Any) -> dict[str, Any]:
    return claims.read_claim(run.data.tags.get(contract.TAG_LAUNCH))
