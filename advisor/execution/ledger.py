"""What MLflow knows of a study's jobs: which were begun, by whom, and how they ended. The only module here that talks to MLflow.

A job is begun by creating its run, so any number of launchers, on any number of machines, agree on who trains what: one that finds
a second claim to a job takes its own back, so that of two at least one gives way. A launcher that dies is missed by its heartbeat
(on the same machine by its process), and its unfinished jobs are begun anew, their old runs deleted in MLflow's restorable way.

Nothing here waits for a store that does not answer: it raises `LaterError`, and the launcher asks again while its trainings go on.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from advisor import contract
from advisor.execution import claims
from advisor.execution.claims import Claimant
from advisor.execution.engines.process import Ended
from advisor.execution.exit_records import Ending, Endings
from advisor.execution.job_states import Reading
from advisor.execution.jobs import SEEDS_A_ROUND, Job, Key
from advisor.execution.record import LONGEST, DeliveringError, Entry, Outcome, RefusedError, as_logged, once
from advisor.model.errors import AdvisorError
from advisor.model.spec import StudySpec
from advisor.tracking import study_tags
from advisor.tracking.stores.client import IMPATIENT, one_line, open_client, quiet_mlflow
from advisor.tracking.stores.location import Location, from_anywhere

DELIVERY_S = 45.0
"""How long to wait for the hook to deliver what a training logged, once its process has ended."""
TAKEN = ("done", "busy", "silent")
"""States of a job that is not open to be begun."""
_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000


class Ledger:
    """The jobs of one study in one experiment."""

    def __init__(self, location: Location, experiment: str, spec: StudySpec) -> None:
        """Opens the store, makes the experiment if it is new, and notes the study file in it.

        Raises AdvisorError if the store cannot be reached, or the experiment holds trials of another space under this study's name.
        """
        self._spec, self._claimant, self._uri = spec, Claimant(), from_anywhere(location)
        self._recording = threading.RLock()
        """Held while how a job ended is recorded, lest a pulse from another thread write over it."""
        from advisor_logging.store import one_at_a_time

        with quiet_mlflow(IMPATIENT), one_at_a_time(location.uri):
            try:
                self._client = open_client(replace(location, uri=self._uri))
                self._id = self._open(experiment, spec)
            except AdvisorError:
                raise
            except Exception as error:
                raise AdvisorError(f"cannot use {location.display}: {one_line(error)}") from None
        self._reading = self._read(self._id)

    def _open(self, name: str, spec: StudySpec) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, tags=study_tags.tags_of(spec)))
            except Exception:
                found = self._client.get_experiment_by_name(name)  # another launcher may have been faster
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise AdvisorError(f"experiment {name!r} was deleted; restore it in MLflow, or pass another --experiment")
        id = str(found.experiment_id)
        noted = next((s for s in study_tags.specs_of(found.tags) if s.study == spec.study), None)
        other = None if noted is None else _difference(noted, spec)
        if other is not None and self._read(id).runs():
            raise AdvisorError(
                f"experiment {name!r} has trials of study {spec.study!r} {other}; give the study another name, or pass another "
                "--experiment"
            )
        for tag, text in study_tags.tags_of(spec).items():
            self._client.set_experiment_tag(id, tag, text)
        return id

    def _read(self, id: str) -> Reading:
        return Reading(self._client, self._uri, id, self._spec, self._claimant)

    def entries(self) -> list[Entry]:
        """All jobs that were begun, in the order of their numbers; of one begun twice, what is furthest."""
        return once(self._reading.entries)

    def earlier(self) -> list[Entry]:
        """The trials of the studies that this one follows from, the first round's first, as far as they compare: the same
        objective and schedule, as many steps."""
        return once(self._reading.earlier)

    # --- beginning --------------------------------------------------------------------------------------------------------------

    def begin(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        """Begin jobs, each with a seed that no other training of its trial has: a study that gets more seeds later may have used
        its own.

        Gives each as it was begun with the id of its run; or with its state, one of `TAKEN`, where it is not open to be begun.
        """
        begun = once(lambda: self._begin(jobs))
        self._claimant.held |= {run_id for _, run_id in begun if run_id not in TAKEN}
        return begun

    def _begin(self, jobs: Sequence[Job]) -> list[tuple[Job, str]]:
        found: dict[Key, tuple[Job, str]] = {}
        left = list(jobs)
        while left:
            mine = self._claimed(left, found)
            found |= mine
            after = self._reading.trainings([job for job, _ in mine.values()])
            left = []
            for key, (job, run_id) in mine.items():
                if any(e.key == key and e.run_id != run_id for e in after[job.number]):
                    self._delete(run_id)
                    left.append(job)
            if left:  # two that give way to each other try again at different times
                time.sleep(random.uniform(0.05, 1.0))  # noqa: S311
        return [found[job.key] for job in jobs]

    def _claimed(self, jobs: Sequence[Job], found: dict[Key, tuple[Job, str]]) -> dict[Key, tuple[Job, str]]:
        """The jobs with a run each, but for those that are taken: their state goes to `found`."""
        trainings = self._reading.trainings(jobs)
        mine: dict[Key, tuple[Job, str]] = {}
        for job in jobs:
            before = [e for e in trainings[job.number] if e.key == job.key]
            state = next((s for s in TAKEN if any(e.state == s for e in before)), None)
            if state is not None:
                found[job.key] = job, state
                continue
            seeds = {e.seed for e in trainings[job.number] if e.key != job.key and e.state != "open"}
            seeds |= {str(other.seed) for other, _ in mine.values() if other.number == job.number}
            for left in before:
                self._delete(left.run_id)
            begun = self._unlike(job, seeds)
            mine[job.key] = begun, self._create(begun)
        return mine

    def _unlike(self, job: Job, seeds: Container[str]) -> Job:
        """The job with a seed that none of its trial's other trainings has."""
        if (self._spec.seeds or 1) == 1:
            return job
        first = max(0, job.seed - job.repeat)
        others = (first, *range(first + (self._spec.seeds or 1), first + SEEDS_A_ROUND))
        return replace(job, seed=next((seed for seed in (job.seed, *others) if str(seed) not in seeds), job.seed))

    def _create(self, job: Job) -> str:
        from mlflow.entities import Param

        objective = self._spec.objective
        tags = {
            contract.TAG_STUDY: self._spec.study,
            contract.TAG_TRIAL: str(job.number),
            contract.TAG_REPEAT: str(job.repeat),
            contract.TAG_SEED: str(job.seed),
            contract.TAG_OBJECTIVE: objective.metric,
            contract.TAG_DIRECTION: objective.direction,
            contract.TAG_LAUNCH: self._claimant.note({}),
        }
        if self._spec.max_train_steps is not None:
            tags[contract.TAG_MAX_TRAIN_STEPS] = str(self._spec.max_train_steps)
        run_id = str(self._client.create_run(self._id, tags=tags, run_name=job.name).info.run_id)
        params = [Param(name, as_logged(value)) for name, value in job.params.items()]
        try:
            for i in range(0, len(params), _PARAMS_AT_ONCE):
                self._client.log_batch(run_id, params=params[i : i + _PARAMS_AT_ONCE])
        except Exception:
            self._delete(run_id)  # a run without its hyperparameters would be a trial of nothing
            raise
        return run_id

    def _delete(self, run_id: str) -> None:
        if self._client.get_run(run_id).info.lifecycle_stage == "active":  # another launcher may have been faster
            self._client.delete_run(run_id)

    def release(self, run_id: str) -> None:
        """Take back a claim to a job that could not be started."""
        self._claimant.held.discard(run_id)
        once(lambda: self._delete(run_id))

    def beat(self, run_id: str, note: Mapping[str, Any]) -> None:
        """Note what trains it, and that this launcher lives; to be repeated every `claims.HEARTBEAT_S`."""
        once(lambda: self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimant.note(note)))

    def pulse(self, run_id: str) -> None:
        """As `beat`, of a training in this process, from another thread: without a try at more, or a touch at the environment.

        Of a run that is no longer held it says nothing.
        """
        with suppress(Exception), self._recording:
            if run_id in self._claimant.held:
                self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimant.note({}))

    def log(self, run_id: str, points: Mapping[int, tuple[float, int]]) -> None:
        """Log values of the objective with their times (ms since 1970) by optimizer step; doing so again changes nothing."""
        from mlflow.entities import Metric

        metric = self._spec.objective.metric
        metrics = [Metric(metric, value, at, step) for step, (value, at) in points.items()]
        for i in range(0, len(metrics), _METRICS_AT_ONCE):
            once(lambda i=i: self._client.log_batch(run_id, metrics=metrics[i : i + _METRICS_AT_ONCE]))  # type: ignore[misc]

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def take_over(self, endings: Endings) -> None:
        """Record what launchers that live no more could not."""
        for ending in endings.left():
            with suppress(RefusedError):  # its run was deleted meanwhile
                self.deliver(ending)
            endings.forget(ending.name)

    def deliver(self, ending: Ending, *, since_s: float = math.inf) -> Outcome | None:
        """Note all of an ending, as `ended` does."""
        self.log(ending.run_id, ending.points)
        once(lambda: self._say(ending.run_id, ending.status, ending.error))
        return self.ended(ending.run_id, ending.ended, since_s=since_s)

    def _say(self, run_id: str, status: str | None, error: str | None) -> None:
        for tag, text in ((contract.TAG_STATUS, status), (contract.TAG_ERROR, error)):
            if text is not None:
                self._client.set_tag(run_id, tag, text[:LONGEST])

    def ended(self, run_id: str, ended: Ended, *, since_s: float = math.inf, final: bool = False) -> Outcome | None:
        """Note how the job's training ended, beside what it said of that itself; None for one that is to be begun again.

        since_s: how long ago it ended; final: one whose machine was lost is not begun again. Raises DeliveringError while the hook
        may still deliver.
        """
        with self._recording:
            outcome = once(lambda: self._ended(run_id, ended, since_s, final=final))
            self._claimant.held.discard(run_id)
        return outcome

    def _ended(self, run_id: str, ended: Ended, since_s: float, *, final: bool) -> Outcome | None:
        run = self._client.get_run(run_id)
        hooked = contract.TAG_SCHEMA in run.data.tags or contract.TAG_SPOOL in run.data.tags
        if hooked and run.info.status == "RUNNING" and since_s < DELIVERY_S and not ended.lost:
            raise DeliveringError
        if ended.lost and run.info.status == "FINISHED":
            ended = Ended(0)  # only the word of it was lost
        again = ended.interrupted or (ended.lost and not final)
        status, error = (None, None) if again else self._verdict(run, ended)
        self._say(run_id, status, error)
        run_status = "FINISHED" if ended.fine else "KILLED" if ended.timed_out or ended.lost or again else "FAILED"
        if run.info.status != run_status:
            self._client.set_terminated(run_id, run_status)
        outcome = None if status is None else Outcome(status, self._reading.best(run_id), error)
        # The best value is noted, so that a launcher that goes on need not read all curves again.
        note = {"state": "interrupted"} if outcome is None else {"state": "done", "best": outcome.best}
        self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimant.note(note))
        return outcome

    def _verdict(self, run: Any, ended: Ended) -> tuple[str, str | None]:
        """Status and error of a job, from how its training ended and what it said itself."""
        status, error = run.data.tags.get(contract.TAG_STATUS), run.data.tags.get(contract.TAG_ERROR)
        if ended.timed_out or ended.lost:
            return "stopped", ended.reason
        if not ended.fine and status not in ("infeasible", "diverged"):
            return "infeasible", ended.reason
        return (self._reading.status(run) if status in (None, "running") else str(status)), error

    def take_in_orphans(self) -> None:
        """Record trainings that lost their launcher and have ended since; end and record those here that outlive their time."""
        for run in once(self._reading.runs):
            run_id, said = str(run.info.run_id), claims.read(run.data.tags.get(contract.TAG_LAUNCH))
            if not said or "state" in said:
                continue  # of nobody, or recorded, or interrupted
            if self._claimant.overdue(said):
                claims.kill(said)
                self.ended(run_id, Ended(-9, timed_out=True))
            elif self._claimant.state(run_id, said, run.info.status) == "done":
                self.ended(run_id, Ended(0 if run.info.status == "FINISHED" else 1))


def _difference(noted: StudySpec, ours: StudySpec) -> str | None:
    """What keeps trials of the noted study file from being trials of ours, in words; None where nothing does."""
    if _drawn_from(noted) != _drawn_from(ours):
        return "from another space or sampler"
    changed = [
        part for part in ("objective", "max_train_steps", "schedule") if getattr(noted, part) != getattr(ours, part)
    ]
    return f"with another {' and '.join(changed)}" if changed else None


def _drawn_from(spec: StudySpec) -> dict[str, Any]:
    """All of a study file that its trials are drawn from, without the reasons."""
    why = {"__all__": {"why"}}
    parts = {"parameters", "forbidden", "sampler"}
    return spec.model_dump(include=parts, exclude={"parameters": why, "forbidden": why})
