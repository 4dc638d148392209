"""Begins the jobs of a study, and records in MLflow how they ended.

A launcher begins a job by creating an MLflow run. If two launchers claim the same job, each launcher that sees the other's
claim withdraws its own claim. If a launcher fails (`claims`), its unfinished jobs are begun again. No method waits for an
unreachable tracking store."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from advisor import contract
from advisor.contract.guard_stop import GuardStop, is_last_step, read_guard_stop
from advisor.execution.engines.process import Exit
from advisor.execution.job import SEEDS_PER_ROUND, Job, JobKey
from advisor.execution.ledger import claims
from advisor.execution.ledger.claims import JobClaimer
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.execution.ledger.record import (
    MAX_PARAM_VALUE_CHARS,
    CallRejectedError,
    DataPendingError,
    JobEntry,
    JobOutcome,
    call_mlflow_once,
    mlflow_param_text,
)
from advisor.execution.ledger.runs import RetryPolicy, open_experiment
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking.stores.client import FIRST_REQUEST_SETTINGS, explain_error, open_client, quiet_mlflow
from advisor.tracking.stores.location import StoreLocation, absolute_uri
from advisor_logging.store import lock_store_opening

MAX_DELIVERY_WAIT_S = 45.0
"""Maximum seconds to wait for our training hook's data after the end of a training process."""
BLOCKED_STATES = ("done", "busy", "silent")
_MAX_PARAMS_PER_REQUEST = 100
_MAX_METRICS_PER_REQUEST = 1000


class Ledger:
    """The jobs of one study in one MLflow experiment."""

    def __init__(self, location: StoreLocation, experiment: str, spec: StudySpec, retry: RetryPolicy | None = None) -> None:
        """Open the tracking store, and open or create the experiment. retry: trials of earlier launches that are begun again.

        Raises AdvisorError if the tracking store is unreachable, or if the experiment has trials of another search space.
        """
        retry = retry or RetryPolicy()
        self._spec, self._claimer = spec, JobClaimer(retry.command)
        self._recording = threading.RLock()
        """Held while the end of a job is recorded, so that no heartbeat from another thread overwrites the record."""
        with quiet_mlflow(FIRST_REQUEST_SETTINGS), lock_store_opening(location.uri):
            try:
                self._client = open_client(replace(location, uri=absolute_uri(location)))
                self._runs = open_experiment(self._client, experiment, location, spec, self._claimer, retry)
            except AdvisorError:
                raise
            except Exception as error:
                raise explain_error(error, location, "use") from None

    def entries(self) -> list[JobEntry]:
        return call_mlflow_once(self._runs.entries)

    def preceding_trials(self) -> list[JobEntry]:
        return call_mlflow_once(self._runs.preceding_trials)

    # --- beginning --------------------------------------------------------------------------------------------------------------

    def begin(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        """Begin jobs. Return each job with the id of its MLflow run, or with one of `BLOCKED_STATES` if the job cannot be
        begun. A returned job may have a new seed: no two runs of a trial have the same seed, even after more seeds."""
        begun_jobs = call_mlflow_once(lambda: self._begin_jobs(jobs))
        self._claimer.held_run_ids |= {run_id for _, run_id in begun_jobs if run_id not in BLOCKED_STATES}
        return begun_jobs

    def _begin_jobs(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        results: dict[JobKey, tuple[Job, str]] = {}
        remaining_jobs = list(jobs)
        while remaining_jobs:
            claimed_jobs = self._claim_jobs(remaining_jobs, results)
            results |= claimed_jobs
            runs_by_trial = self._runs.entries_by_trial([job for job, _ in claimed_jobs.values()])
            remaining_jobs = []
            for key, (job, run_id) in claimed_jobs.items():
                if any(e.key == key and e.run_id != run_id for e in runs_by_trial[job.number]):
                    self._runs.delete(run_id)
                    remaining_jobs.append(job)
            if remaining_jobs:  # two launchers that both withdrew their claims must not retry at the same time
                time.sleep(random.uniform(0.05, 1.0))  # noqa: S311
        return [results[job.key] for job in jobs]

    def _claim_jobs(self, jobs: Sequence[Job], results: dict[JobKey, tuple[Job, str]]) -> dict[JobKey, tuple[Job, str]]:
        """Create MLflow runs for unclaimed jobs, and return these jobs. Add the states of all other jobs to `results`."""
        runs_by_trial = self._runs.entries_by_trial(jobs)
        new_claims: dict[JobKey, tuple[Job, str]] = {}
        for job in jobs:
            existing_runs = [e for e in runs_by_trial[job.number] if e.key == job.key]
            state = next((s for s in BLOCKED_STATES if any(e.state == s for e in existing_runs)), None)
            if state is not None:
                results[job.key] = job, state
                continue
            seeds = {e.seed for e in runs_by_trial[job.number] if e.key != job.key and e.state != "open"}
            seeds |= {str(other.seed) for other, _ in new_claims.values() if other.number == job.number}
            former = next((e for e in existing_runs if e.stop_tag), None)
            run_to_resume = former if former is not None and former.can_resume else None
            for entry in existing_runs:
                if entry is not run_to_resume:
                    self._runs.delete(entry.run_id)
            if former is not None:
                seeded_job = replace(job, seed=int(former.seed)) if former.seed.isdecimal() else job
            elif (count := self._spec.seeds or 1) == 1:
                seeded_job = job
            else:
                first_seed = max(0, job.seed - job.repeat)
                candidates = (job.seed, first_seed, *range(first_seed + count, first_seed + SEEDS_PER_ROUND))
                seeded_job = replace(job, seed=next((seed for seed in candidates if str(seed) not in seeds), job.seed))
            if run_to_resume is not None:
                self._resume_run(run_to_resume)
                new_claims[job.key] = seeded_job, run_to_resume.run_id
            else:
                new_claims[job.key] = (seeded_job, self._create_run(seeded_job, "" if former is None else former.stop_tag))
        return new_claims

    def _resume_run(self, entry: JobEntry) -> None:
        """Claim the run of a job that is to be continued. Only `TAG_CONTINUED_AFTER_STOP` then shows the early stop."""
        self._client.set_tag(entry.run_id, contract.TAG_CONTINUED_AFTER_STOP, entry.stop_tag)
        self._client.set_tag(entry.run_id, contract.TAG_LAUNCH, self._claimer.tag_text({}))
        tags = self._client.get_run(entry.run_id).data.tags
        for tag in (contract.TAG_STATUS, contract.TAG_ERROR, contract.TAG_GUARD_STOP):
            if tag in tags:
                self._client.delete_tag(entry.run_id, tag)
        self._client.update_run(entry.run_id, status="RUNNING")
        self._claimer.held_run_ids.add(entry.run_id)
        self._runs.continued_run_ids.discard(entry.run_id)

    def continue_trial(self, trial: str) -> Mapping[str, JobEntry]:
        """Open a trial (name or number) that was stopped early, so that `begin` continues the trial. Return the trial's jobs,
        keyed by the names of their runs. Raises AdvisorError if the trial was not stopped early."""
        stopped = call_mlflow_once(self._runs.stopped_jobs)
        chosen_jobs = {name: e for name, e in stopped.items() if trial in (name, str(e.key[0]))}
        if not chosen_jobs:
            hint = f"it stopped {', '.join(list(stopped)[:8])}" if stopped else "it stopped no trial of this study"
            raise AdvisorError(f"the guard did not stop trial {trial!r}, so there is nothing to continue; {hint}")
        self._runs.continued_run_ids |= {entry.run_id for entry in chosen_jobs.values()}
        return chosen_jobs

    def _create_run(self, job: Job, continued: str = "") -> str:
        from mlflow.entities import Param

        objective = self._spec.objective
        tags = {
            contract.TAG_STUDY: self._spec.study,
            contract.TAG_TRIAL: str(job.number),
            contract.TAG_REPEAT: str(job.repeat),
            contract.TAG_SEED: str(job.seed),
            contract.TAG_OBJECTIVE: objective.metric,
            contract.TAG_DIRECTION: objective.direction,
            contract.TAG_LAUNCH: self._claimer.tag_text({}),
        }
        if continued:
            tags[contract.TAG_CONTINUED_AFTER_STOP] = continued
        if self._spec.max_train_steps is not None:
            tags[contract.TAG_MAX_TRAIN_STEPS] = str(self._spec.max_train_steps)
        run_id = str(self._client.create_run(self._runs.experiment_id, tags=tags, run_name=job.name).info.run_id)
        params = [Param(name, mlflow_param_text(value)) for name, value in job.params.items()]
        try:
            for i in range(0, len(params), _MAX_PARAMS_PER_REQUEST):
                self._client.log_batch(run_id, params=params[i : i + _MAX_PARAMS_PER_REQUEST])
        except Exception:
            self._runs.delete(run_id)  # an MLflow run without hyperparameters is useless
            raise
        return run_id

    def release(self, run_id: str) -> None:
        """Withdraw the claim to a job whose training process could not be started."""
        self._claimer.held_run_ids.discard(run_id)
        call_mlflow_once(lambda: self._runs.delete(run_id))

    def send_heartbeat(self, run_id: str, details: Mapping[str, Any]) -> None:
        """Send a heartbeat; call this method every `claims.HEARTBEAT_INTERVAL_S`. details: for the claim."""
        call_mlflow_once(lambda: self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimer.tag_text(details)))

    def send_heartbeat_from_thread(self, run_id: str) -> None:
        """Send a heartbeat for a run that this process trains, if the run is still claimed. Thread-safe; raises no errors."""
        with suppress(Exception), self._recording:
            if run_id in self._claimer.held_run_ids:
                self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimer.tag_text({}))

    def log(self, run_id: str, points: Mapping[int, tuple[float, int]]) -> None:
        """Log objective values: {optimizer step: (value, time in ms since 1970)}. Logging a point twice does no harm."""
        from mlflow.entities import Metric

        metric = self._spec.objective.metric
        metrics = [Metric(metric, value, at, step) for step, (value, at) in points.items()]
        for i in range(0, len(metrics), _MAX_METRICS_PER_REQUEST):
            call_mlflow_once(partial(self._client.log_batch, run_id, metrics=metrics[i : i + _MAX_METRICS_PER_REQUEST]))

    def mark_stop(self, run_id: str, stop: GuardStop) -> None:
        """Record an early stop. Call this before the run ends; otherwise, readers would see a crash."""
        call_mlflow_once(lambda: self._client.set_tag(run_id, contract.TAG_GUARD_STOP, stop.tag_text()))

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def deliver_left_records(self, records: ExitRecords) -> None:
        """Deliver the exit records that failed launchers left on disk."""
        for record in records.read_left_records():
            with suppress(CallRejectedError):  # the MLflow run of the record was deleted
                self.deliver(record)
            records.forget(record.name)

    def deliver(self, record: ExitRecord, *, since_s: float = math.inf) -> JobOutcome | None:
        """Log all data of an exit record to MLflow, and return the result of `Ledger.end`."""
        self.log(record.run_id, record.points)
        call_mlflow_once(lambda: self._set_status(record.run_id, record.status, record.error))
        return self.end(record.run_id, record.exit, since_s=since_s, stop=record.stop)

    def _set_status(self, run_id: str, status: str | None, error: str | None) -> None:
        for tag, text in ((contract.TAG_STATUS, status), (contract.TAG_ERROR, error)):
            if text is not None:
                self._client.set_tag(run_id, tag, text[:MAX_PARAM_VALUE_CHARS])

    def end(
        self, run_id: str, exit: Exit, *, since_s: float = math.inf, final: bool = False, stop: GuardStop | None = None
    ) -> JobOutcome | None:
        """Record how a training process ended. Return the outcome of the job, or None if the job must be begun again.

        since_s: seconds since the process ended. final: if True, the job is not begun again even if its machine was lost. stop:
        the early stop that this launcher carried out. Raises an exception while our training hook may still deliver data.
        """
        with self._recording:
            outcome = call_mlflow_once(lambda: self._end_run(run_id, exit, since_s, final=final, stop=stop))
            self._claimer.held_run_ids.discard(run_id)
        return outcome

    def _end_run(self, run_id: str, exit: Exit, since_s: float, *, final: bool, stop: GuardStop | None) -> JobOutcome | None:
        run = self._client.get_run(run_id)
        has_hook = contract.TAG_SCHEMA in run.data.tags or contract.TAG_SPOOL in run.data.tags
        if has_hook and run.info.status == "RUNNING" and since_s < MAX_DELIVERY_WAIT_S and not exit.lost:
            raise DataPendingError
        stop_tag = run.data.tags.get(contract.TAG_GUARD_STOP)
        stop = read_guard_stop(stop_tag) or stop  # the training process may have recorded the stop first
        if stop is not None:
            points = self._client.get_metric_history(run_id, self._spec.objective.metric) if stop.length else ()
            if is_last_step(max((p.step for p in points), default=-1), stop.length):
                exit, stop = Exit(0), None  # the trial reached its planned length before it received the request to stop
                if stop_tag is not None:
                    self._client.delete_tag(run_id, contract.TAG_GUARD_STOP)
        if exit.lost and run.info.status == "FINISHED":
            exit = Exit(0)  # the training process succeeded, and only its exit status was lost
        is_restarted = stop is None and (exit.interrupted or (exit.lost and not final))
        status, error = (None, None) if is_restarted else self._status_and_error(run, exit)
        if stop is not None:
            status, error = stop.status, None
            if stop_tag is None:  # the tracking store was unreachable when the trial was stopped
                self._client.set_tag(run_id, contract.TAG_GUARD_STOP, stop.tag_text())
        self._set_status(run_id, status, error)
        is_killed = stop is not None or exit.timed_out or exit.lost or is_restarted
        run_status = "KILLED" if is_killed else "FINISHED" if exit.ok else "FAILED"
        if run.info.status != run_status:
            self._client.set_terminated(run_id, run_status)
        outcome = None
        if status is not None:
            reason = (stop.reason or None) if stop is not None else error or self._runs.error_reason(run, status)
            outcome = JobOutcome(status, self._runs.best_value(run_id), reason)
        claim = claims.read_claim(run.data.tags.get(contract.TAG_LAUNCH))  # maybe another launcher's
        # The tag contains the best value, so that later launchers need not read the objective's curve.
        details = {"state": "interrupted"} if outcome is None else {"state": "done", "best": outcome.best}
        text = self._claimer.tag_text({**details, "command": claim.get("command")})
        self._client.set_tag(run_id, contract.TAG_LAUNCH, text)
        return outcome

    def _status_and_error(self, run: Any, exit: Exit) -> tuple[str, str | None]:
        status, error = run.data.tags.get(contract.TAG_STATUS), run.data.tags.get(contract.TAG_ERROR)
        if exit.timed_out or exit.lost:
            return "stopped", exit.reason
        if not exit.ok and status not in ("infeasible", "diverged"):
            return "infeasible", exit.reason
        if status in (None, "running") or (status in ("complete", "stopped") and not self._runs.has_objective(run)):
            return self._runs.infer_status(run), error
        return str(status), error

    def record_orphans(self) -> None:
        """Record the end of training processes whose launcher failed first. Kill those that exceed their time limits."""
        for run in call_mlflow_once(self._runs.runs):
            run_id, claim = str(run.info.run_id), claims.read_claim(run.data.tags.get(contract.TAG_LAUNCH))
            if not claim or "state" in claim:
                continue  # skip runs that no launcher started, and jobs whose end is already recorded
            if self._claimer.kill_if_overdue(claim):
                self.end(run_id, Exit(-9, timed_out=True))
            elif self._claimer.state(run_id, claim, run.info.status) == "done":
                self.end(run_id, Exit(0 if run.info.status == "FINISHED" else 1))
