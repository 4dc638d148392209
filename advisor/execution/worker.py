"""Trains all jobs of a study: starts each job, monitors its process, and records how it ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from advisor.contract.guard_stop import GuardStop
from advisor.execution.engines import Exit, Task, Training
from advisor.execution.guarding import StudyGuard
from advisor.execution.job import Job, JobKey
from advisor.execution.job_env import check_command, create_private_folder, job_command, job_environment, unknown_option_hint
from advisor.execution.ledger import Ledger, record
from advisor.execution.ledger.claims import HEARTBEAT_INTERVAL_S
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.execution.ledger.ledger import BLOCKED_STATES
from advisor.execution.plan import LaunchPlan, Summary, SummaryCallback
from advisor.model.errors import AdvisorError, TrialsFailed, UnansweredError, convert_write_errors
from advisor.system.notifier import NOTIFICATION_EVENTS, Notification

_MAX_POLL_INTERVAL_S = 0.1
_MIN_POLL_INTERVAL_S = 0.005
"""Minimum seconds between two checks whether a training process has ended. The pause doubles until one ends."""
MAX_FIRST_FAILURES = 3
"""Number of first trials that must all fail, or all log nothing, for the launch to end with an error."""
MAX_RESTARTS_OF_LOST_JOB = 3
"""Maximum number of restarts of a job whose machine was lost. After one more loss, the job is stopped."""


def launch(plan: LaunchPlan, ledger: Ledger, on_update: SummaryCallback) -> Summary:
    """Train all jobs of a study that have not ended. After an interruption, another call resumes the launch. Raises
    KeyboardInterrupt after a stop request, once all jobs are stopped. Raises AdvisorError if the first trials fail."""
    check_command(plan.spec, plan.command, append=plan.append_hyperparameters)
    with convert_write_errors(plan.folder):
        create_private_folder(plan.folder)
    summary = Summary(plan.queue.total, maximize=plan.spec.objective.direction == "maximize")
    launcher = _JobLauncher(plan, ledger, summary, on_update)
    signals = StopSignals()
    with signals.count_stop_signals():
        try:
            launcher.read_outcomes()
            count = len(summary.outcomes)
            on_update(summary, f"{count} of {summary.total} jobs had already ended." if count else "")
            launcher.run(signals)
        finally:
            launcher.stop(signals)
    if signals.count:
        raise KeyboardInterrupt("run the same command again to resume")
    return summary


@dataclass
class _BegunJob:
    job: Job
    run_id: str
    training: Training
    log: Path
    deadline: float | None
    """In seconds since 1970."""
    exit: Exit | None = None
    ended_at: float = 0.0
    record_retry_at: float = 0.0
    stop: GuardStop | None = None
    """The decision to stop the trial early, if this launcher has carried it out."""


class _JobLauncher:
    def __init__(self, plan: LaunchPlan, ledger: Ledger, summary: Summary, on_update: SummaryCallback) -> None:
        self._plan, self._ledger, self._summary, self._report_news = plan, ledger, summary, partial(on_update, summary)
        self._records = ExitRecords(plan.folder, plan.location, plan.experiment)
        self._begun: list[_BegunJob] = []
        self._next_beat = time.monotonic() + HEARTBEAT_INTERVAL_S
        self._outage = record.StoreOutage(self._report_news)
        self._lost: dict[JobKey, int] = {}
        self._new_outcomes: list[record.JobOutcome] = []
        self._guard = None if plan.guard is None else StudyGuard(plan.guard)
        self._guard_error: str | None = None

    def read_outcomes(self) -> None:
        """Deliver to MLflow the exit records that other launchers left on disk, and read all recorded outcomes."""
        try:
            self._ledger.deliver_left_records(self._records)
            self._ledger.record_orphans()
            entries = self._ledger.entries()
        except record.StoreUnreachableError as error:
            message = f"the tracking store does not answer: {error}; run the same command again when it does"
            raise UnansweredError(message) from None
        repeats = self._plan.spec.seeds or 1
        study_entries = (e for e in entries if e.key[1] < repeats and e.key[0] * repeats < self._summary.total)
        self._summary.outcomes |= {e.key: e.outcome for e in study_entries if e.outcome is not None}

    def run(self, signals: StopSignals) -> None:
        pause = _MIN_POLL_INTERVAL_S
        while not signals.count:
            begun_count = len(self._begun)
            may_begin_more = self._begin()
            has_news = self._record_ended_trainings() or len(self._begun) > begun_count
            pause = _MIN_POLL_INTERVAL_S if has_news else min(2 * pause, _MAX_POLL_INTERVAL_S)
            if time.monotonic() >= max(self._next_beat, self._outage.retry_at):
                self._next_beat = time.monotonic() + HEARTBEAT_INTERVAL_S
                for item in self._begun:
                    if item.exit is None and not self._send_heartbeat(item):
                        break
            self._follow_guard()
            if not (may_begin_more or self._begun or self._plan.queue.may_return_jobs()):
                self.read_outcomes()
                return
            if self._outage.has_lasted_too_long() and all(item.exit is not None for item in self._begun):
                raise AdvisorError(
                    f"the tracking store has not answered for {record.MAX_STORE_WAIT_S / 60:.0f} minutes; run the same command "
                    f"again when it answers. The ends of {len(self._begun)} trainings are recorded in {self._plan.folder}"
                )
            time.sleep(pause)

    # --- beginning --------------------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Start as many jobs as the engine can run now. Return True if more jobs may be started later."""
        if time.monotonic() < self._outage.retry_at:
            return True
        claimed_jobs: list[tuple[Job, str]] = []
        capacity, may_begin_more = self._plan.engine.free_capacity(), True
        try:
            while capacity > len(claimed_jobs):
                jobs = self._plan.queue.next(self._ledger.entries, capacity - len(claimed_jobs))
                if not jobs:
                    may_begin_more = self._plan.queue.may_return_jobs()
                    break
                new = [job for job in jobs if job.key not in self._summary.outcomes]
                claimed_jobs += self._claim_jobs(new)
                if not new:  # the queue may return an ended job again, for example if its run was deleted in MLflow
                    break
            self._outage.end()
        except record.StoreUnreachableError:
            self._outage.record_failure()
        self._start_claimed(claimed_jobs)
        return may_begin_more

    def _claim_jobs(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        try:
            if self._records.others_have_records:
                self._ledger.deliver_left_records(self._records)
            begun_jobs = self._ledger.begin(jobs)
        except record.StoreUnreachableError:
            for job in reversed(jobs):
                self._plan.queue.requeue(job)
            raise
        for job, state in begun_jobs:
            if state in BLOCKED_STATES:
                self._plan.queue.defer_claimed_job(job, silent=state == "silent")
            if state in ("done", "busy"):
                self._report_news(f"{job.name} is or was trained by another launcher.")
        return [(job, run_id) for job, run_id in begun_jobs if run_id not in BLOCKED_STATES]

    def _start_claimed(self, claimed: Sequence[tuple[Job, str]]) -> None:
        if not claimed:
            return
        plan = self._plan
        tasks = []
        for job, run_id in claimed:
            log, file = plan.folder / f"{job.name}.log", plan.folder / f"{job.name}.json"
            words = job_command(plan.spec, job, plan.command, file, run_id, append=plan.append_hyperparameters)
            environment = job_environment(plan.spec, job, run_id, plan.location, plan.experiment)
            tasks.append(Task(job.name, words, environment, log.absolute(), file.absolute(), job.params_json(), plan.timeout_s))
        try:
            trainings = plan.engine.start(tasks)
        except BaseException:
            for _, run_id in claimed:
                # Otherwise, the claim expires when this launcher ends.
                with suppress(record.StoreUnreachableError, record.CallRejectedError):
                    self._ledger.release(run_id)
            raise
        deadline = None if plan.timeout_s is None else time.time() + plan.timeout_s
        started = zip(claimed, trainings, tasks, strict=True)
        begun_jobs = [_BegunJob(job, run, training, task.log, deadline) for (job, run), training, task in started]
        self._begun += begun_jobs
        for item in begun_jobs:
            self._send_heartbeat(item)

    # --- guarding ---------------------------------------------------------------------------------------------------------------

    def _follow_guard(self) -> None:
        running_jobs = [item for item in self._begun if item.exit is None]
        if self._guard is None or not running_jobs or (reading := self._guard.latest()) is None:
            return
        if reading.error is not None:
            if self._guard_error is None:
                self._report_news(f"The guard cannot read the study, so it stops nothing: {reading.error}")
            self._guard_error = reading.error
            return
        self._guard_error = None
        verdicts = {verdict.run_id: verdict for verdict in reading.running}
        for item in running_jobs:
            verdict = verdicts.get(item.run_id)
            if verdict is None or item.stop is not None:
                continue
            if verdict.stop and self._plan.stop_doomed:
                self._stop_doomed(item, verdict.as_stop())
            elif verdict.state != "not_finite" or not self._plan.stop_doomed:  # else its stop causes the message
                self._notify(verdict.state, item.job.name, verdict.step, verdict.message)

    def _stop_doomed(self, item: _BegunJob, stop: GuardStop) -> None:
        """Record in MLflow that the trial is stopped, and stop its process. Without the store, the process continues."""
        try:
            self._ledger.mark_stop(item.run_id, stop)
        except record.StoreUnreachableError:
            self._outage.record_failure()
            return
        except record.CallRejectedError:
            return  # the run was deleted, which is reported when its job ends
        item.stop = stop
        item.training.stop()

    def _notify(self, event: str, trial: str, step: int | None, message: str) -> None:
        if self._plan.notifier is not None and event in NOTIFICATION_EVENTS:
            self._plan.notifier.send(Notification(event, self._plan.spec.study, trial, step, message))

    # --- keeping the record -----------------------------------------------------------------------------------------------------

    def _send_heartbeat(self, item: _BegunJob) -> bool:
        """Send a heartbeat for the job. Return True if the tracking store responded."""
        details = {**item.training.claim_details(), **({} if item.deadline is None else {"until": item.deadline})}
        try:
            self._ledger.send_heartbeat(item.run_id, details)
            self._outage.end()
        except record.CallRejectedError:
            pass  # the run was deleted, which is reported when its job ends
        except record.StoreUnreachableError:
            self._outage.record_failure()
            return False
        return True

    def _record_ended_trainings(self) -> bool:
        count_before = len(self._begun)
        for item in list(self._begun):
            if item.exit is None:
                item.exit = item.training.poll()
                if item.exit is None:
                    continue
                item.ended_at = time.monotonic()
                # If the disk is full, the exit record is lost only if this launcher is killed before MLflow has the record.
                with suppress(OSError):
                    self._records.keep(ExitRecord(item.job.name, item.run_id, item.exit, stop=item.stop))
            if time.monotonic() >= max(item.record_retry_at, self._outage.retry_at):
                self._record_end(item, item.exit)
        return len(self._begun) < count_before

    def _record_end(self, item: _BegunJob, exit: Exit) -> None:
        lost, since = self._lost.get(item.job.key, 0), time.monotonic() - item.ended_at
        try:
            outcome = self._ledger.end(item.run_id, exit, since_s=since, final=lost >= MAX_RESTARTS_OF_LOST_JOB, stop=item.stop)
            self._outage.end()
        except record.CallRejectedError as error:
            name = item.job.name
            self._report_news(f"The end of {name} cannot be recorded, so the next launch begins the job again: {error}")
            outcome, exit = None, Exit(1, interrupted=True)
        except record.DataPendingError:
            item.record_retry_at = time.monotonic() + record.DELIVERY_POLL_INTERVAL_S
            return
        except record.StoreUnreachableError:
            self._outage.record_failure()
            return
        self._begun.remove(item)
        self._records.forget(item.job.name)
        if outcome is not None:
            self._summary.outcomes[item.job.key] = outcome
            if item.stop is not None and outcome.status != item.stop.status:
                item.stop = None  # the training process had just ended by itself
            failure_text = _describe_failure(item, outcome)
            self._report_news(failure_text)
            if item.stop is not None:
                self._notify("stopped", item.job.name, item.stop.step, failure_text)
            elif outcome.status in (*record.FAILED_STATUSES, "diverged"):
                self._notify("not_finite" if outcome.status == "diverged" else "failed", item.job.name, None, failure_text)
            self._new_outcomes.append(outcome)
            self._check_first_outcomes()
        elif exit.lost:
            self._lost[item.job.key] = lost + 1
            self._report_news(f"{item.job.name}: {exit.reason}; we begin the job again.")
            self._plan.queue.requeue(item.job)

    def _check_first_outcomes(self) -> None:
        has_result = len(self._summary.outcomes) > self._summary.failed
        if self._plan.keep_going or has_result or len(self._new_outcomes) != MAX_FIRST_FAILURES:
            return
        logs, last = self._plan.folder, self._new_outcomes[-1].error
        if all(o.status == "infeasible" for o in self._new_outcomes):
            hint = unknown_option_hint(last or "", self._plan.spec.parameters)
            raise TrialsFailed(
                f"the first {MAX_FIRST_FAILURES} trials all failed, the last with: {last}; their output is in {logs}; "
                f"{hint and hint + '; '}fix the command, or add the options that the training lacks, and run it again: trials "
                "that logged nothing are begun again; --keep-going continues in spite of failures"
            )
        if all(o.status == "no_data" for o in self._new_outcomes):
            raise TrialsFailed(f"the first {MAX_FIRST_FAILURES} trials gave no result: {last}; their output is in {logs}")

    def stop(self, signals: StopSignals) -> None:
        """Stop all running jobs. The next launch begins the unfinished jobs again."""
        self._stop_trainings(kill=False)
        handled_signals = signals.count
        while any(item.exit is None for item in self._begun) or (self._begun and not self._outage.is_ongoing):
            if signals.count > max(handled_signals, 1):
                handled_signals = signals.count
                self._stop_trainings(kill=True)
            with suppress(AdvisorError):  # continue to stop jobs even if all of the first trials failed
                self._record_ended_trainings()
            time.sleep(_MAX_POLL_INTERVAL_S)
        self._records.close()
        self._plan.engine.close()
        if self._guard is not None:
            self._guard.close()

    def _stop_trainings(self, *, kill: bool) -> None:
        """Ask all running training processes to stop. kill: if True, kill the processes that were already asked."""
        for item in self._begun:
            if item.exit is None and (kill or item.stop is None):
                item.training.stop()


def _describe_failure(item: _BegunJob, outcome: record.JobOutcome) -> str:
    if outcome.status == "complete":
        return ""
    if item.stop is not None:
        return f"{item.job.name} was stopped at step {item.stop.step:,}: {item.stop.reason}"
    reason = f": {outcome.error}" if outcome.error else ""
    verb_by_status = {"infeasible": "failed", "no_data": "gave no result", "stopped": "was stopped", "pruned": "was stopped"}
    return f"{item.job.name} {verb_by_status.get(outcome.status, outcome.status)}{reason} ({item.log})"


# --- stop requests --------------------------------------------------------------------------------------------------------------


class StopSignals:
    """Counts stop requests. The first request stops the program at a safe point, the second one immediately."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def count_stop_signals(self) -> Iterator[None]:
        """While the block runs, count stop signals instead of letting them end the program."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A signal that was ignored when the process started (by `nohup`, for example) stays ignored.
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        handled_numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]

        def count(*_: Any) -> None:
            self.count += 1

        previous_handlers: dict[int, Any] = {number: signal.signal(number, count) for number in handled_numbers}
        if signal.SIGINT not in previous_handlers:
            # In a shell script, `advisor run … &` starts with SIGINT ignored, and training processes would inherit this. They
            # do not inherit a handler, so install one that does nothing.
            previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
