"""What MLflow knows of a study's jobs: which were begun, by whom, and how they ended. The only module here that talks to MLflow.

A job is begun by creating its run, so any number of launchers, on any number of machines, agree on who trains what: one that finds
a second claim to a job takes its own back, so that of two at least one gives way. A launcher that dies is missed by its heartbeat
(on the same machine by its process), and its unfinished jobs are begun anew, their old runs deleted in MLflow's restorable way.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import psutil

from advisor import contract
from advisor.errors import AdvisorError
from advisor.launch.jobs import Job
from advisor.launch.process import Ended
from advisor.spec import StudySpec
from advisor.tracking import study_file
from advisor.tracking.client import IMPATIENT, PATIENT, one_line, open_client, quiet_mlflow
from advisor.tracking.location import Location

HEARTBEAT_S = 30.0
DEAD_S = 150.0
"""A launcher on another machine that was silent for so long is taken for dead."""
DELIVERY_S = 45.0
"""How long to wait for the hook to deliver what a training logged, once its process has ended."""
PATIENCE_S = 600.0
"""How long to try again while the store does not answer."""

State = Literal["done", "busy", "open"]
"""done: ended and counted · busy: somebody trains it now · open: begun and left, or never begun"""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    status: str
    """One of `contract.STATUSES`."""
    best: float | None
    """Best value of the objective; None where it has no finite one."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    run_id: str
    state: State
    mine: bool
    outcome: Outcome | None = None


class Ledger:
    """The jobs of one study in one experiment."""

    def __init__(self, location: Location, experiment: str, spec: StudySpec) -> None:
        """Opens the store, makes the experiment if it is new, and notes the study file in it.

        Raises AdvisorError if the store cannot be reached, or the experiment holds trials of another space under this study's name.
        """
        self._spec, self._experiment = spec, experiment
        self._me = {"host": socket.gethostname(), "pid": os.getpid(), "began": psutil.Process().create_time()}
        from advisor_logging.store import one_at_a_time

        with quiet_mlflow(IMPATIENT), one_at_a_time(location.uri):
            try:
                self._client = open_client(location)
                self._id = self._open(experiment, spec)
            except AdvisorError:
                raise
            except Exception as error:
                raise AdvisorError(f"cannot use {location.shown}: {one_line(error)}") from None

    def _open(self, name: str, spec: StudySpec) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, tags=study_file.tags_of(spec)))
        if found.lifecycle_stage != "active":
            raise AdvisorError(f"experiment {name!r} was deleted; restore it in MLflow, or pass another --experiment")
        self._id = str(found.experiment_id)
        noted = next((s for s in study_file.specs_of(found.tags) if s.study == spec.study), None)
        if noted is not None and not self._same_trials(noted) and any(True for _ in self._runs()):
            raise AdvisorError(
                f"experiment {name!r} has trials of study {spec.study!r} from another space or sampler; give the study another "
                "name, or pass another --experiment"
            )
        for tag, text in study_file.tags_of(spec).items():
            self._client.set_experiment_tag(self._id, tag, text)
        return self._id

    def _same_trials(self, noted: StudySpec) -> bool:
        """Whether the noted study file draws the same trials as ours."""
        return (noted.parameters, noted.sampler) == (self._spec.parameters, self._spec.sampler)

    # --- reading ----------------------------------------------------------------------------------------------------------------

    def finished(self) -> dict[tuple[int, int], Outcome]:
        """The jobs that ended, by key, and what became of them."""
        claims = self._patiently(lambda: [(self._key(run), self._claim_of(run)) for run in self._runs()])
        return {key: c.outcome for key, c in claims if key is not None and c.outcome is not None}

    def _runs(self, job: Job | None = None) -> Iterable[Any]:
        wanted = f"tags.`{contract.TAG_STUDY}` = '{_quoted(self._spec.study)}'"
        if job is not None:
            wanted += (
                f" AND tags.`{contract.TAG_TRIAL}` = '{job.number}' AND tags.`{contract.TAG_REPEAT}` = '{job.repeat}'"
            )
        token = None
        while True:
            page = self._client.search_runs([self._id], wanted, max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    @staticmethod
    def _key(run: Any) -> tuple[int, int] | None:
        try:
            return int(run.data.tags[contract.TAG_TRIAL]), int(run.data.tags[contract.TAG_REPEAT])
        except (KeyError, ValueError):
            return None

    def _claim_of(self, run: Any) -> _Claim:
        launch = _object(run.data.tags.get(contract.TAG_LAUNCH))
        mine = all(launch.get(name) == value for name, value in self._me.items())
        if launch.get("state") == "done":
            return _Claim(run.info.run_id, "done", mine, self._outcome(run))
        if launch.get("state") != "interrupted" and self._alive(launch):
            return _Claim(run.info.run_id, "busy", mine)
        if run.info.status in ("FINISHED", "FAILED"):  # it ended by itself after its launcher had died
            return _Claim(run.info.run_id, "done", mine, self._outcome(run))
        return _Claim(run.info.run_id, "open", mine)

    def _alive(self, launch: Mapping[str, Any]) -> bool:
        """Whether the launcher or the training of a claim still lives."""
        if launch.get("host") != self._me["host"]:
            return time.time() - float(launch.get("seen", 0.0)) < DEAD_S
        return _lives(launch.get("pid"), launch.get("began")) or _lives(
            launch.get("training"), launch.get("training_began")
        )

    # --- writing ----------------------------------------------------------------------------------------------------------------

    def claim(self, job: Job) -> str | None:
        """Begin a job: the id of its run; None where it has ended or somebody else trains it."""
        return self._patiently(lambda: self._claim(job))

    def _claim(self, job: Job) -> str | None:
        while True:
            before = [self._claim_of(run) for run in self._runs(job)]
            if any(c.state != "open" for c in before):
                return None
            for left in before:
                self._client.delete_run(left.run_id)
            mine = self._create(job)
            others = [self._claim_of(run) for run in self._runs(job) if run.info.run_id != mine]
            if not others:
                return mine
            self._client.delete_run(mine)
            time.sleep(random.uniform(0.05, 1.0))  # noqa: S311  two that give way to each other try again at different times

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
            contract.TAG_LAUNCH: json.dumps({**self._me, "seen": time.time()}),
        }
        if self._spec.max_train_steps is not None:
            tags[contract.TAG_MAX_TRAIN_STEPS] = str(self._spec.max_train_steps)
        run = self._client.create_run(self._id, tags=tags, run_name=job.name)
        params = [Param(name, str(value)) for name, value in job.params.items()]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def started(self, run_id: str, pid: int) -> None:
        """Note which process trains it, and that this launcher lives; to be repeated every `HEARTBEAT_S`."""
        try:
            began = psutil.Process(pid).create_time()
        except psutil.Error:
            began = 0.0
        note = {**self._me, "seen": time.time(), "training": pid, "training_began": began}
        self._patiently(lambda: self._client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps(note)))

    def ended(self, run_id: str, ended: Ended) -> Outcome | None:
        """Note how the job's process ended, beside what the training itself said of it; None for one to be begun again."""
        return self._patiently(lambda: self._ended(run_id, ended))

    def _ended(self, run_id: str, ended: Ended) -> Outcome | None:
        run = self._delivered(run_id)
        status, error = run.data.tags.get(contract.TAG_STATUS), run.data.tags.get(contract.TAG_ERROR)
        if ended.timed_out:
            status, error = "stopped", ended.reason
        elif not ended.fine and status not in ("infeasible", "diverged"):
            status, error = "infeasible", ended.reason
        elif status in (None, "running"):
            status = self._status(run)
        said = {contract.TAG_STATUS: status, contract.TAG_ERROR: error}
        if ended.interrupted:
            said = {}
        for tag, text in said.items():
            if text is not None:
                self._client.set_tag(run_id, tag, text)
        final = "FINISHED" if ended.fine else "KILLED" if ended.timed_out or ended.interrupted else "FAILED"
        if run.info.status != final:
            self._client.set_terminated(run_id, final)
        outcome = None if ended.interrupted else Outcome(str(status), self._best(run_id), error)
        note = {**self._me, "seen": time.time(), "state": "done" if outcome else "interrupted"}
        if outcome is not None:
            note["best"] = outcome.best  # so that a launcher that goes on need not read all curves again
        self._client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps(note))
        return outcome

    def _delivered(self, run_id: str) -> Any:
        """The run, once the hook has delivered it; at once where no hook logged it."""
        until = time.monotonic() + DELIVERY_S
        while True:
            run = self._client.get_run(run_id)
            hooked = contract.TAG_SCHEMA in run.data.tags or contract.TAG_SPOOL in run.data.tags
            if not hooked or run.info.status != "RUNNING" or time.monotonic() > until:
                return run
            time.sleep(0.2)

    def _status(self, run: Any) -> str:
        """What the logged objective says of a training that does not say it itself."""
        last = run.data.metrics.get(self._spec.objective.metric)
        return "no_data" if last is None else "complete" if math.isfinite(last) else "diverged"

    def _outcome(self, run: Any) -> Outcome:
        """What became of a run that ended earlier."""
        launch = _object(run.data.tags.get(contract.TAG_LAUNCH))
        best = launch["best"] if "best" in launch else self._best(run.info.run_id)
        status = run.data.tags.get(contract.TAG_STATUS) or self._status(run)
        return Outcome(status, best, run.data.tags.get(contract.TAG_ERROR))

    def _best(self, run_id: str) -> float | None:
        """The best finite value of the objective over the training."""
        objective = self._spec.objective
        values = [m.value for m in self._client.get_metric_history(run_id, objective.metric) if math.isfinite(m.value)]
        return (min if objective.direction == "minimize" else max)(values, default=None)

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """The call's result; tried again while the store is unwell, because a training that has run must not be lost."""
        until, pause = time.monotonic() + PATIENCE_S, 1.0
        while True:
            try:
                with quiet_mlflow(PATIENT):
                    return call()
            except AdvisorError:
                raise
            except Exception as error:
                if time.monotonic() + pause > until:
                    raise AdvisorError(
                        f"the store does not answer: {one_line(error)}; run the same command again when it does"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, 30.0)


def _lives(pid: object, began: object) -> bool:
    """Whether the process that began then still runs."""
    if not isinstance(pid, int) or not isinstance(began, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _quoted(text: str) -> str:
    if "'" in text:
        raise AdvisorError(f"the study's name {text!r} has an apostrophe, which MLflow cannot search for; rename it")
    return text
