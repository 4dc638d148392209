"""Opens the experiment of a study, and reads the study's MLflow runs as jobs with keys, states and outcomes."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor import contract
from advisor.contract.guard_stop import read_guard_stop
from advisor.execution.job import Job, JobKey
from advisor.execution.ledger import claims
from advisor.execution.ledger.claims import JobClaimer
from advisor.execution.ledger.record import FAILED_STATUSES, JobEntry, JobOutcome, quote_study_name
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking import study_tags
from advisor.tracking.lineage import StudyInExperiment, find_study, places
from advisor.tracking.stores.location import StoreLocation, absolute_uri
from advisor.tracking.study.metric_names import is_window_or_system_metric

_MAX_TRIALS_QUERIED_SINGLY = 8
"""Maximum number of trials with a separate query each; for more, a single query reads all runs of the study."""
_MAX_LISTED_METRICS = 8
_STATES_BY_PROGRESS = ("open", "silent", "busy", "done")


@dataclass(frozen=True)
class RetryPolicy:
    """Decides which trials of earlier launches this launch begins again. MLflow keeps their old runs, marked as deleted."""

    command: str | None = None
    """Fingerprint of this launch's command; None for runs in a Python loop."""
    trials: Literal["none", "silent", "failed", "all"] = "none"
    """silent: failed trials that logged nothing, unless their launcher still runs · failed: all failed trials · all: all ended
    trials, unless their launcher still runs"""

    def begins_trial_again(self, status: str, metrics: Iterable[str]) -> bool:
        """Return whether to begin a trial again. metrics: names of the metrics that the trial logged."""
        if self.trials == "all":
            return True
        if status not in FAILED_STATUSES or self.trials == "none":
            return False
        return self.trials == "failed" or not training_metric_names(metrics)


class StudyRuns:
    """The MLflow runs of one study in one MLflow experiment."""

    def __init__(
        self, client: Any, uri: str, experiment_id: str, spec: StudySpec, claimant: JobClaimer, retry: RetryPolicy
    ) -> None:
        self._client, self._uri, self.experiment_id = client, uri, experiment_id
        self._spec, self._claimer, self._retry = spec, claimant, retry
        self._retried_run_ids: frozenset[str] | None = None
        """Ids of the runs whose trials are begun again. The first read fixes these ids, so trials that fail later are not begun
        again."""
        self.continued_run_ids: set[str] = set()
        """Ids of the runs that were stopped early and that this launch will continue, until they resume."""

    def runs(self, trial: int | None = None) -> list[Any]:
        study_filter = f"tags.`{contract.TAG_STUDY}` = {quote_study_name(self._spec.study)}"
        trial_filter = "" if trial is None else f" AND tags.`{contract.TAG_TRIAL}` = '{trial}'"
        return self._search_runs(self.experiment_id, study_filter + trial_filter)

    def _search_runs(self, experiment_id: str, filter: str) -> list[Any]:
        runs, token = [], None
        while True:
            page = self._client.search_runs([experiment_id], filter, max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                self._claimer.slurm.forget_last_query()
                return runs

    def entries(self) -> list[JobEntry]:
        """Return all begun jobs, sorted by trial number. If a job has several runs, return the run with the most progress."""
        entries: dict[JobKey, JobEntry] = {}
        runs = self.runs()
        if self._retried_run_ids is None:
            retried_run_ids = frozenset(self._runs_to_retry(runs))
            # Decide for all runs at once, so that an interrupted launch can be resumed without `--retry all`.
            if self._retry.trials == "all":
                for run_id in retried_run_ids:
                    self.delete(run_id)
                runs = self.runs()
            self._retried_run_ids = retried_run_ids
        for entry in self._read_entries(runs):
            other_entry = entries.get(entry.key)
            if other_entry is None or _STATES_BY_PROGRESS.index(other_entry.state) < _STATES_BY_PROGRESS.index(entry.state):
                entries[entry.key] = entry
        return [entries[key] for key in sorted(entries)]

    def delete(self, run_id: str) -> None:
        if self._client.get_run(run_id).info.lifecycle_stage == "active":
            self._client.delete_run(run_id)

    def entries_by_trial(self, jobs: Sequence[Job]) -> Mapping[int, list[JobEntry]]:
        """Return all runs of the jobs' trials, keyed by trial number."""
        trials = {job.number for job in jobs}
        runs = [run for t in trials for run in self.runs(t)] if len(trials) <= _MAX_TRIALS_QUERIED_SINGLY else self.runs()
        entries: dict[int, list[JobEntry]] = defaultdict(list)
        for entry in self._read_entries(runs):
            entries[entry.key[0]].append(entry)
        return entries

    def _read_entries(self, runs: Sequence[Any]) -> Iterator[JobEntry]:
        for run in runs:
            tags, run_id = run.data.tags, str(run.info.run_id)
            try:
                key = int(tags[contract.TAG_TRIAL]), int(tags[contract.TAG_REPEAT])
            except (KeyError, ValueError):
                continue
            claim = _read_run_claim(run)
            state = self._claimer.state(run_id, claim, run.info.status)
            if state == "done" and (run_id in (self._retried_run_ids or ()) or run_id in self.continued_run_ids):
                state = "open"
            outcome = self._read_outcome(run, claim) if state == "done" else None
            stop_tag = tags.get(contract.TAG_GUARD_STOP, "") if run_id in self.continued_run_ids else ""
            continued_tag = tags.get(contract.TAG_CONTINUED_AFTER_STOP) or stop_tag
            can_resume = False
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                checkpoints = json.loads(tags.get(contract.TAG_CHECKPOINTS, ""))
                can_resume = bool(checkpoints["resumes"] and checkpoints["kept"])
            seed = tags.get(contract.TAG_SEED, "")
            yield JobEntry(run_id, key, state, run.data.params, seed, outcome, continued_tag, can_resume)

    def stopped_jobs(self) -> dict[str, JobEntry]:
        """Return the jobs that were stopped early, keyed by the names of their runs."""
        runs = [run for run in self.runs() if contract.TAG_GUARD_STOP in run.data.tags]
        names = {str(run.info.run_id): str(run.info.run_name) for run in runs}
        return {names[entry.run_id]: entry for entry in self._read_entries(runs) if entry.state == "done"}

    def _runs_to_retry(self, runs: Sequence[Any]) -> Iterator[str]:
        claimed_runs = [(run, str(run.info.run_id), _read_run_claim(run)) for run in runs]
        states = {run_id: self._claimer.state(run_id, claim, run.info.status) for run, run_id, claim in claimed_runs}
        launchers = {c["launcher"] for _, run_id, c in claimed_runs if states[run_id] in ("busy", "silent") and "launcher" in c}
        for run, run_id, claim in claimed_runs:
            launcher_works = claim.get("launcher") in launchers or self._claimer.is_launcher_running(claim)
            has_ended = states[run_id] == "done" and (self._retry.trials == "failed" or not launcher_works)
            if has_ended and self._retry.begins_trial_again(self._read_run_status(run), run.data.metrics):
                yield run_id

    def _read_outcome(self, run: Any, claim: Mapping[str, Any]) -> JobOutcome:
        status = self._read_run_status(run)
        best_value = claim.get("best")
        is_corrected = best_value is None and run.data.tags.get(contract.TAG_STATUS) == "no_data" and self.has_objective(run)
        if "best" not in claim or is_corrected:
            best_value = self.best_value(run.info.run_id)
        return JobOutcome(status, best_value, self.error_reason(run, status))

    def _read_run_status(self, run: Any) -> str:
        """Return the recorded status of a run. If no status is recorded, or the study's objective was corrected afterwards,
        infer the status from the logged values."""
        status = run.data.tags.get(contract.TAG_STATUS)
        return self.infer_status(run) if status is None or (status == "no_data" and self.has_objective(run)) else str(status)

    def error_reason(self, run: Any, status: str) -> str | None:
        """Return the recorded error of a run or, without an error, the reason why the objective has no value; or None."""
        guard_stop = read_guard_stop(run.data.tags.get(contract.TAG_GUARD_STOP))
        if guard_stop is not None:
            return guard_stop.reason or None
        error: str | None = run.data.tags.get(contract.TAG_ERROR)
        if error is not None or status != "no_data":
            return error
        declared_objective = run.data.tags.get(contract.TAG_OBJECTIVE)
        return missing_objective_reason(self._spec.objective.metric, run.data.metrics, declared_objective)

    def best_value(self, run_id: str) -> float | None:
        """Return the best finite value of the objective that the run logged, if any."""
        objective = self._spec.objective
        values = [m.value for m in self._client.get_metric_history(run_id, objective.metric) if math.isfinite(m.value)]
        return (min if objective.direction == "minimize" else max)(values, default=None)

    def has_objective(self, run: Any) -> bool:
        return self._spec.objective.metric in run.data.metrics

    def infer_status(self, run: Any) -> str:
        """Infer the status of a run from the run's last value of the objective."""
        last_value = run.data.metrics.get(self._spec.objective.metric)
        return "no_data" if last_value is None else "complete" if math.isfinite(last_value) else "diverged"

    def preceding_trials(self) -> list[JobEntry]:
        """Return the trials of the preceding studies, oldest round first, with the same objective, schedule and steps."""
        runs = [run for place in self._preceding_studies() for run in self._find_study_runs(place) if self._is_comparable(run)]
        entries = enumerate((run, self._read_outcome(run, _read_run_claim(run))) for run in runs)
        return [JobEntry(str(run.info.run_id), (i, 0), "done", run.data.params, "", out) for i, (run, out) in entries]

    def _preceding_studies(self) -> list[StudyInExperiment]:
        known_places, preceding = places(self._uri), list[StudyInExperiment]()
        parent = self._spec.parent
        while parent is not None and parent not in {self._spec.study, *(place.study for place in preceding)}:
            place = find_study(known_places, parent)
            if place is None:
                break
            preceding.insert(0, place)
            parent = place.parent
        schedule = dict(self._spec.schedule or {})
        return [p for p in preceding if p.spec is None or (p.spec.probe is None and dict(p.spec.schedule or {}) == schedule)]

    def _find_study_runs(self, place: StudyInExperiment) -> list[Any]:
        """Return the runs of the study, oldest first. If no run of the experiment names a study, all runs count."""
        experiment = self._client.get_experiment_by_name(place.experiment)
        if experiment is None:
            return []
        id, of_study = str(experiment.experiment_id), f"tags.`{contract.TAG_STUDY}` = {quote_study_name(place.study)}"
        runs = self._search_runs(id, of_study)
        if not runs and place.spec is None:
            runs = self._search_runs(id, "")
        return sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))

    def _is_comparable(self, run: Any) -> bool:
        tags, steps = run.data.tags, self._spec.max_train_steps
        expected = dict[str, str]()
        is_corrected = self.has_objective(run) and tags.get(contract.TAG_OBJECTIVE) not in run.data.metrics
        if not is_corrected:
            expected[contract.TAG_OBJECTIVE] = self._spec.objective.metric
            expected[contract.TAG_DIRECTION] = self._spec.objective.direction
        if steps is not None:
            expected[contract.TAG_MAX_TRAIN_STEPS] = str(steps)
        has_expected_tags = all(tags.get(tag, value) == value for tag, value in expected.items())
        claim = _read_run_claim(run)
        state = self._claimer.state(str(run.info.run_id), claim, run.info.status) if claim else None
        has_ended = state == "done" if claim else run.info.status != "RUNNING"
        return has_expected_tags and has_ended and contract.TAG_PROBE not in tags


def _read_run_claim(run: Any) -> dict[str, Any]:
    return claims.read_claim(run.data.tags.get(contract.TAG_LAUNCH))


def training_metric_names(metrics: Iterable[str]) -> list[str]:
    """Return the sorted names of metrics, without device metrics and without minima and maxima over logging windows."""
    return sorted(m for m in metrics if not (is_window_or_system_metric(m) or m.startswith("device/")))


def missing_objective_reason(objective: str, metrics: Iterable[str], declared: str | None) -> str:
    """Return the reason why a trial has no value of the objective, with the name of the metric that the user probably meant.

    declared: objective that the training script itself declared, if any."""
    logged_names = training_metric_names(metrics)
    if not logged_names:
        return (
            f"{objective} was never logged, nor was any other metric; the training must log to the MLflow run that "
            "MLFLOW_RUN_ID names (our hook and mlflow.start_run() do so)"
        )
    shown_names = logged_names[:_MAX_LISTED_METRICS]
    if len(logged_names) > len(shown_names):
        shown_names.append(f"{len(logged_names) - len(shown_names)} more")
    similar = [declared] if declared in logged_names else difflib.get_close_matches(objective, logged_names, n=1)
    advice = f": set `objective.metric: {similar[0]}` in the study file" if similar else ""
    return f"{objective} was never logged; logged: {', '.join(shown_names)}{advice}"


def open_experiment(
    client: Any, name: str, location: StoreLocation, spec: StudySpec, claimant: JobClaimer, retry: RetryPolicy
) -> StudyRuns:
    """Create the experiment if necessary, store the study file in the experiment's tags, and return the runs of the study.
    Raises AdvisorError if the experiment was deleted, or has trials of another search space under the same study name."""
    experiment = client.get_experiment_by_name(name)
    uri, tags = absolute_uri(location), study_tags.study_file_tags(spec)
    if experiment is None:
        artifacts = None  # MLflow's default folder; next to a SQLite file outside the current folder
        if location.kind == "sqlite" and location.path is not None and location.path.parent != Path.cwd():
            digest = hashlib.sha256(name.encode()).hexdigest()[:12]
            artifacts = (location.path.parent / "mlruns" / digest).as_uri()
        try:
            return StudyRuns(client, uri, str(client.create_experiment(name, artifacts, tags)), spec, claimant, retry)
        except Exception:
            experiment = client.get_experiment_by_name(name)  # another launcher may have created the experiment
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise AdvisorError(f"experiment {name!r} was deleted; restore it in MLflow, or pass another --experiment")
    study_runs = StudyRuns(client, uri, str(experiment.experiment_id), spec, claimant, retry)
    stored_spec = next((s for s in study_tags.all_stored_specs(experiment.tags) if s.study == spec.study), None)
    difference = None if stored_spec is None else _describe_difference(stored_spec, spec)
    if stored_spec is not None and difference is not None and (runs := study_runs.runs()):
        corrected_spec = stored_spec.model_copy(update={"objective": spec.objective})
        has_objective = any(stored_spec.objective.metric in run.data.metrics for run in runs)
        if has_objective or _describe_difference(corrected_spec, spec) is not None:
            raise AdvisorError(
                f"experiment {name!r} has trials of study {spec.study!r} {difference}; give the study another name, or pass "
                "another --experiment"
            )
    for tag, text in tags.items():
        client.set_experiment_tag(study_runs.experiment_id, tag, text)
    return study_runs


def _describe_difference(stored: StudySpec, spec: StudySpec) -> str | None:
    """Return a phrase that names the difference between the stored study and this study; None if the stored trials belong to
    it."""
    reasons = {"__all__": {"why"}}
    dump_options: dict[str, Any] = {"include": {"parameters", "forbidden", "sampler"}}
    dump_options["exclude"] = {"parameters": reasons, "forbidden": reasons}
    if stored.model_dump(**dump_options) != spec.model_dump(**dump_options):
        return "from another search space or sampler"
    field_names = ("objective", "max_train_steps", "schedule")
    changed_fields = [part for part in field_names if getattr(stored, part) != getattr(spec, part)]
    return f"with another {' and '.join(changed_fields)}" if changed_fields else None
