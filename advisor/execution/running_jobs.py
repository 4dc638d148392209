"""The jobs that run now: begun where there is room, watched, recorded when they end, begun again where their machine was lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from advisor.execution.claims import HEARTBEAT_S
from advisor.execution.engines import Ended, Task, Training
from advisor.execution.exit_records import Ending, Endings
from advisor.execution.job_env import environment_of, words_of
from advisor.execution.jobs import Job, Key
from advisor.execution.ledger import TAKEN, Ledger
from advisor.execution.options import Launch, Summary, Tell
from advisor.execution.record import (
    LONGEST_PAUSE_S,
    PATIENCE_S,
    DeliveringError,
    LaterError,
    Outcome,
    RefusedError,
    UnansweredError,
)
from advisor.execution.stopping import Asked
from advisor.model.errors import AdvisorError

PAUSE_S = 0.1
GIVE_UP = 3
"""So many first trials that all fail, or log nothing: the rest would as well."""
LOST_OFTEN = 3
"""So many times a job is begun anew whose machine was lost; then it is recorded as stopped."""


@dataclass
class _Begun:
    """A job that was begun here."""

    job: Job
    run_id: str
    training: Training
    log: Path
    until: float | None
    ended: Ended | None = None
    ended_at: float = 0.0
    try_at: float = 0.0


class Work:
    """The jobs that run now."""

    def __init__(self, plan: Launch, ledger: Ledger, summary: Summary, tell: Tell) -> None:
        self._plan, self._ledger, self._summary, self._tell = plan, ledger, summary, tell
        self._endings = Endings(plan.folder, plan.location, plan.experiment)
        self._begun: list[_Begun] = []
        self._beat_at = time.monotonic() + HEARTBEAT_S
        self._silent_since: float | None = None
        self._try_at = 0.0
        self._lost: dict[Key, int] = {}
        self._fresh: list[Outcome] = []
        """Outcomes of this call."""

    def recall(self) -> None:
        """What had ended before this call, also what an earlier launcher could not record."""
        try:
            self._ledger.take_over(self._endings)
        except LaterError as error:
            raise _unanswered(error) from None
        self._read()
        had = len(self._summary.outcomes)
        self._tell(self._summary, f"{had} of {self._summary.total} had ended before." if had else "")

    def _read(self) -> None:
        """Take over what the record says of jobs that ended, whoever trained them, also those that lost their launcher."""
        try:
            self._ledger.take_in_orphans()
            entries = self._ledger.entries()
        except LaterError as error:
            raise _unanswered(error) from None
        repeats = self._plan.spec.seeds or 1
        inside = (e for e in entries if e.key[1] < repeats and e.key[0] * repeats < self._summary.total)
        self._summary.outcomes |= {e.key: e.outcome for e in inside if e.outcome is not None}

    def run(self, asked: Asked) -> None:
        """Until no job is left to begin and none runs, or until it is asked to stop."""
        while not asked.times:
            more = self._begin()
            self._collect()
            self._heartbeat()
            if not (more or self._begun or self._plan.source.waits()):
                self._read()
                return
            self._give_up_waiting()
            time.sleep(PAUSE_S)

    # --- beginning --------------------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin as many jobs as there is room for; whether there may be more."""
        if time.monotonic() < self._try_at:
            return True
        claimed: list[tuple[Job, str]] = []
        room, more = self._plan.engine.room(), True
        try:
            while room > len(claimed):
                jobs = self._plan.source.next(self._ledger.entries, room - len(claimed))
                if not jobs:
                    more = self._plan.source.waits()
                    break
                claimed += self._claimed([job for job in jobs if job.key not in self._summary.outcomes])
            self._well()
        except LaterError:
            self._unwell()
        self._start(claimed)
        return more

    def _claimed(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        """Those of the jobs that are to be had, each with its run."""
        try:
            if self._endings.others:
                self._ledger.take_over(self._endings)
            begun = self._ledger.begin(jobs)
        except LaterError:
            for job in reversed(jobs):
                self._plan.source.again(job)
            raise
        for job, state in begun:
            if state in TAKEN:
                self._plan.source.refused(job, state)  # type: ignore[arg-type]
            if state in ("done", "busy"):
                self._tell(self._summary, f"{job.name} is trained, or was, by another launcher.")
        return [(job, run_id) for job, run_id in begun if run_id not in TAKEN]

    def _start(self, claimed: Sequence[tuple[Job, str]]) -> None:
        if not claimed:
            return
        tasks = [self._task(job, run_id) for job, run_id in claimed]
        try:
            started = self._plan.engine.start(tasks)
        except BaseException:
            for _, run_id in claimed:
                self._release(run_id)
            raise
        until = None if self._plan.timeout_s is None else time.time() + self._plan.timeout_s
        begun = [
            _Begun(job, run_id, training, task.log, until)
            for (job, run_id), training, task in zip(claimed, started, tasks, strict=True)
        ]
        self._begun += begun
        for one in begun:
            self._beat(one)

    def _release(self, run_id: str) -> None:
        with suppress(LaterError, RefusedError):  # this launcher will be dead, and so is its claim
            self._ledger.release(run_id)

    def _task(self, job: Job, run_id: str) -> Task:
        plan = self._plan
        log, file = plan.folder / f"{job.name}.log", plan.folder / f"{job.name}.json"
        words = words_of(plan.spec, job, plan.words, file, run_id, append=plan.append)
        environment = environment_of(plan.spec, job, run_id, plan.location, plan.experiment)
        return Task(job.name, words, environment, log.absolute(), file.absolute(), job.params_json(), plan.timeout_s)

    # --- keeping the record -----------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if time.monotonic() < max(self._beat_at, self._try_at):
            return
        self._beat_at = time.monotonic() + HEARTBEAT_S
        for one in self._begun:
            if one.ended is None and not self._beat(one):
                return

    def _beat(self, one: _Begun) -> bool:
        """Tell the record that a job is trained; whether the store answered."""
        note = {**one.training.note(), **({} if one.until is None else {"until": one.until})}
        try:
            self._ledger.beat(one.run_id, note)
            self._well()
        except RefusedError:
            pass  # its run was deleted: said when it ends
        except LaterError:
            self._unwell()
            return False
        return True

    def _collect(self) -> None:
        """Record what has ended."""
        for one in list(self._begun):
            if one.ended is None:
                one.ended = one.training.poll()
                if one.ended is None:
                    continue
                one.ended_at = time.monotonic()
                with suppress(OSError):  # a full disk: it is recorded all the same, unless this launcher dies first
                    self._endings.keep(Ending(one.job.name, one.run_id, one.ended))
            if time.monotonic() >= max(one.try_at, self._try_at):
                self._record(one, one.ended)

    def _record(self, one: _Begun, ended: Ended) -> None:
        lost, since = self._lost.get(one.job.key, 0), time.monotonic() - one.ended_at
        try:
            outcome = self._ledger.ended(one.run_id, ended, since_s=since, final=lost >= LOST_OFTEN)
            self._well()
        except RefusedError as error:
            self._tell(self._summary, f"{one.job.name} cannot be recorded; the next launch begins it again: {error}")
            outcome, ended = None, Ended(1, interrupted=True)
        except DeliveringError:
            one.try_at = time.monotonic() + 0.2
            return
        except LaterError:
            self._unwell()
            return
        self._begun.remove(one)
        self._endings.forget(one.job.name)
        if outcome is not None:
            self._conclude(one, outcome)
        elif ended.lost:
            self._lost[one.job.key] = lost + 1
            self._tell(self._summary, f"{one.job.name}: {ended.reason}; it is begun again.")
            self._plan.source.again(one.job)

    def _conclude(self, one: _Begun, outcome: Outcome) -> None:
        self._summary.outcomes[one.job.key] = outcome
        self._tell(self._summary, _said(one, outcome))
        self._fresh.append(outcome)
        self._check()

    def _well(self) -> None:
        if self._silent_since is not None:
            self._tell(self._summary, "The store answers again.")
        self._silent_since, self._try_at = None, 0.0

    def _unwell(self) -> None:
        """The store does not answer: trainings go on, and it is asked again after a while, less and less often."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self._tell(
                self._summary, "The store does not answer; trainings go on, and how they end is kept until it does."
            )
        self._try_at = now + min(max(1.0, (now - self._silent_since) / 4), LONGEST_PAUSE_S)

    def _give_up_waiting(self) -> None:
        trains = any(one.ended is None for one in self._begun)
        if self._silent_since is not None and not trains and time.monotonic() - self._silent_since > PATIENCE_S:
            raise AdvisorError(
                f"the store has not answered for {PATIENCE_S / 60:.0f} minutes; run the same command again when it does: "
                f"how {len(self._begun)} trainings ended is kept in {self._plan.folder}"
            )

    def _check(self) -> None:
        """Stop where the first trials show that the others would fail as well."""
        if self._plan.keep_going or len(self._fresh) != GIVE_UP or len(self._summary.outcomes) != GIVE_UP:
            return
        metric, logs = self._plan.spec.objective.metric, self._plan.folder
        if all(o.status == "infeasible" for o in self._fresh):
            raise AdvisorError(
                f"the first {GIVE_UP} trials all failed, the last with: {self._fresh[-1].error}; their output is in {logs}; "
                "mend the command, or pass --keep-going"
            )
        if all(o.status == "no_data" for o in self._fresh):
            raise AdvisorError(
                f"the first {GIVE_UP} trials ended without logging {metric}; the training must log it into the MLflow run that "
                f"MLFLOW_RUN_ID names (our hook does by itself, mlflow.start_run() too); their output is in {logs}"
            )

    def stop(self, asked: Asked) -> None:
        """Stop all that runs; what had not ended is begun anew the next time."""
        for one in self._begun:
            if one.ended is None:
                one.training.stop()
        heard = asked.times
        while any(one.ended is None for one in self._begun) or (self._begun and self._silent_since is None):
            if asked.times > max(heard, 1):
                heard = asked.times
                for one in self._begun:
                    if one.ended is None:
                        one.training.stop()
            self._collect()
            time.sleep(PAUSE_S)
        self._endings.close()
        self._plan.engine.close()


def _said(one: _Begun, outcome: Outcome) -> str:
    """One line for a job that did not end well."""
    if outcome.status == "complete":
        return ""
    why = f": {outcome.error}" if outcome.error else ""
    words = {"infeasible": "failed", "no_data": "logged no objective", "stopped": "was stopped"}
    return f"{one.job.name} {words.get(outcome.status, outcome.status)}{why} ({one.log})"


def _unanswered(error: Exception) -> UnansweredError:
    return UnansweredError(f"the store does not answer: {error}; run the same command again when it does")
