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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from advisor import contract
from advisor.errors import AdvisorError
from advisor.launch import claims
from advisor.launch.claims import Claimant, State
from advisor.launch.engines.process import Ended
from advisor.launch.given import from_anywhere
from advisor.launch.jobs import SEEDS_A_ROUND, Job, Key
from advisor.launch.record import LONGEST, DeliveringError, Entry, Outcome, as_logged, once, quoted
from advisor.spec import StudySpec
from advisor.tracking import study_file
from advisor.tracking.client import IMPATIENT, one_line, open_client, quiet_mlflow
from advisor.tracking.location import Location

DELIVERY_S = 45.0
"""How long to wait for the hook to deliver what a training logged, once its process has ended."""
_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000


class Ledger:
    """The jobs of one study in one experiment."""

    def __init__(self, location: Location, experiment: str, spec: StudySpec) -> None:
        """Opens the store, makes the experiment if it is new, and notes the study file in it.

        Raises AdvisorError if the store cannot be reached, or the experiment holds trials of another space under this study's name.
        """
        self._spec, self._claimant = spec, Claimant()
        self._held: set[str] = set()
        """The runs of jobs that this launcher trains now."""
        self._recording = threading.RLock()
        """Held while how a job ended is recorded, lest a pulse from another thread write over it."""
        from advisor_logging.store import one_at_a_time

        with quiet_mlflow(IMPATIENT), one_at_a_time(location.uri):
            try:
                self._client = open_client(replace(location, uri=from_anywhere(location)))
                self._id = self._open(experiment, spec)
            except AdvisorError:
                raise
            except Exception as error:
                raise AdvisorError(f"cannot use {location.shown}: {one_line(error)}") from None

    def _open(self, name: str, spec: StudySpec) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, tags=study_file.tags_of(spec)))
            except Exception:
                found = self._client.get_experiment_by_name(name)  # another launcher may have been faster
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise AdvisorError(f"experiment {name!r} was deleted; restore it in MLflow, or pass another --experiment")
        self._id = str(found.experiment_id)
        noted = next((s for s in study_file.specs_of(found.tags) if s.study == spec.study), None)
        other = None if noted is None else _difference(noted, spec)
        if other is not None and any(True for _ in self._runs()):
            raise AdvisorError(
                f"experiment {name!r} has trials of study {spec.study!r} {other}; give the study another name, or pass another "
                "--experiment"
            )
        for tag, text in study_file.tags_of(spec).items():
            self._client.set_experiment_tag(self._id, tag, text)
        return self._id

    # --- reading ----------------------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All jobs that were begun, in the order of their numbers; of one begun twice, what is furthest."""
        return once(lambda: self._entries(self._runs()))

    def _entries(self, runs: Iterable[Any]) -> list[Entry]:
        order = ("open", "silent", "busy", "done")
        found: dict[Key, Entry] = {}
        for run in runs:
            entry = self._entry(run)
            if entry and (entry.key not in found or order.index(found[entry.key].state) < order.index(entry.state)):
                found[entry.key] = entry
        return [found[key] for key in sorted(found)]

    def _runs(self, job: Job | None = None, *, repeats: bool = False) -> Iterable[Any]:
        """The runs of the study, or of one of its jobs; or also of the others of its trial."""
        wanted = f"tags.`{contract.TAG_STUDY}` = {quoted(self._spec.study)}"
        if job is not None:
            number, repeat = job.key
            wanted += f" AND tags.`{contract.TAG_TRIAL}` = '{number}'"
            wanted += "" if repeats else f" AND tags.`{contract.TAG_REPEAT}` = '{repeat}'"
        return self._found(self._id, wanted)

    def _found(self, experiment: str, wanted: str) -> Iterable[Any]:
        token = None
        while True:
            page = self._client.search_runs([experiment], wanted, max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _entry(self, run: Any) -> Entry | None:
        tags, run_id = run.data.tags, str(run.info.run_id)
        try:
            key = int(tags[contract.TAG_TRIAL]), int(tags[contract.TAG_REPEAT])
        except (KeyError, ValueError):
            return None
        said = claims.read(tags.get(contract.TAG_LAUNCH))
        state = self._claimant.state(run_id, said, run.info.status, held=run_id in self._held)
        return Entry(run_id, key, state, run.data.params, self._outcome(run, said) if state == "done" else None)

    def earlier(self) -> list[Entry]:
        """The trials of the study's parent, oldest first, from this experiment or the one named like it, as far as they compare:
        the same objective, as many steps."""
        return [] if self._spec.parent is None else once(lambda: self._earlier(str(self._spec.parent)))

    def _earlier(self, parent: str) -> list[Entry]:
        named = self._client.get_experiment_by_name(parent)
        wanted = f"tags.`{contract.TAG_STUDY}` = {quoted(parent)}"
        runs = list(self._found(self._id, wanted))
        if named is not None and str(named.experiment_id) != self._id:
            runs += self._found(str(named.experiment_id), wanted)
            runs = runs or list(self._found(str(named.experiment_id), ""))  # somebody's own sweep
        runs.sort(key=lambda run: (run.info.start_time or 0, run.info.run_id))
        return [
            Entry(
                str(run.info.run_id),
                (i, 0),
                "done",
                run.data.params,
                self._outcome(run, claims.read(run.data.tags.get(contract.TAG_LAUNCH))),
            )
            for i, run in enumerate(runs)
            if self._compares(run)
        ]

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
        said = claims.read(run.data.tags.get(contract.TAG_LAUNCH))
        if not said:
            return bool(run.info.status != "RUNNING")
        return self._claimant.state(str(run.info.run_id), said, run.info.status, held=False) == "done"

    def _outcome(self, run: Any, said: Mapping[str, Any]) -> Outcome:
        """What became of a run that ended earlier."""
        best = said["best"] if "best" in said else self._best(run.info.run_id)
        status = run.data.tags.get(contract.TAG_STATUS) or self._status(run)
        return Outcome(status, best, run.data.tags.get(contract.TAG_ERROR))

    def _best(self, run_id: str) -> float | None:
        """The best finite value of the objective over the training."""
        objective = self._spec.objective
        values = [m.value for m in self._client.get_metric_history(run_id, objective.metric) if math.isfinite(m.value)]
        return (min if objective.direction == "minimize" else max)(values, default=None)

    def _status(self, run: Any) -> str:
        """What the logged objective says of a training that does not say it itself."""
        last = run.data.metrics.get(self._spec.objective.metric)
        return "no_data" if last is None else "complete" if math.isfinite(last) else "diverged"

    # --- beginning --------------------------------------------------------------------------------------------------------------

    def unlike(self, job: Job) -> Job:
        """The job with a seed that no other training of its trial has: a study that gets more seeds later may have used its own."""
        if (self._spec.seeds or 1) == 1:
            return job
        taken = once(lambda: self._seeds(job))
        first = max(0, job.seed - job.repeat)
        others = (first, *range(first + (self._spec.seeds or 1), first + SEEDS_A_ROUND))
        return replace(job, seed=next((seed for seed in (job.seed, *others) if str(seed) not in taken), job.seed))

    def _seeds(self, job: Job) -> set[str]:
        """The seeds of the other trainings of a job's trial, but for those that are to be begun again."""
        found = ((self._entry(run), run.data.tags.get(contract.TAG_SEED, "")) for run in self._runs(job, repeats=True))
        return {seed for entry, seed in found if entry and entry.key != job.key and entry.state != "open"}

    def claim(self, job: Job) -> str | State:
        """Begin a job: the id of its run; or its state, "done", "busy" or "silent", where it is not open to be begun."""
        run_id = once(lambda: self._claim(job))
        if run_id not in ("done", "busy", "silent"):
            self._held.add(run_id)
        return run_id

    def _claim(self, job: Job) -> str:
        while True:
            before = [entry for run in self._runs(job) if (entry := self._entry(run))]
            for state in ("done", "busy", "silent"):
                if any(entry.state == state for entry in before):
                    return state
            for left in before:
                self._delete(left.run_id)
            mine = self._create(job)
            if all(run.info.run_id == mine for run in self._runs(job)):
                return mine
            self._delete(mine)
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
        self._held.discard(run_id)
        once(lambda: self._delete(run_id))

    def beat(self, run_id: str, note: Mapping[str, Any]) -> None:
        """Note what trains it, and that this launcher lives; to be repeated every `claims.HEARTBEAT_S`."""
        once(lambda: self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimant.note(note)))

    def pulse(self, run_id: str) -> None:
        """As `beat`, of a training in this process, from another thread: without a try at more, or a touch at the environment.

        Of a run that is no longer held it says nothing.
        """
        with suppress(Exception), self._recording:
            if run_id in self._held:
                self._client.set_tag(run_id, contract.TAG_LAUNCH, self._claimant.note({}))

    def log(self, run_id: str, points: Mapping[int, float]) -> None:
        """Log values of the objective by optimizer step."""
        from mlflow.entities import Metric

        now, metric = int(1000 * time.time()), self._spec.objective.metric
        metrics = [Metric(metric, value, now, step) for step, value in points.items()]
        for i in range(0, len(metrics), _METRICS_AT_ONCE):
            once(lambda i=i: self._client.log_batch(run_id, metrics=metrics[i : i + _METRICS_AT_ONCE]))  # type: ignore[misc]

    def say(self, run_id: str, status: str | None, error: str | None) -> None:
        """Note what a training says of its own end."""
        for tag, text in ((contract.TAG_STATUS, status), (contract.TAG_ERROR, error)):
            if text is not None:
                once(lambda tag=tag, text=text: self._client.set_tag(run_id, tag, text))  # type: ignore[misc]

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def ended(self, run_id: str, ended: Ended, *, since_s: float = math.inf, final: bool = False) -> Outcome | None:
        """Note how the job's training ended, beside what it said of that itself; None for one that is to be begun again.

        since_s: how long ago it ended; final: one whose machine was lost is not begun again. Raises DeliveringError while the hook
        may still deliver.
        """
        with self._recording:
            outcome = once(lambda: self._ended(run_id, ended, since_s, final=final))
            self._held.discard(run_id)
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
        for tag, text in ((contract.TAG_STATUS, status), (contract.TAG_ERROR, error)):
            if text is not None:
                self._client.set_tag(run_id, tag, text[:LONGEST])
        run_status = "FINISHED" if ended.fine else "KILLED" if ended.timed_out or ended.lost or again else "FAILED"
        if run.info.status != run_status:
            self._client.set_terminated(run_id, run_status)
        outcome = None if status is None else Outcome(status, self._best(run_id), error)
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
        return (self._status(run) if status in (None, "running") else str(status)), error

    def stop_overdue(self) -> None:
        """End trainings on this machine that lost their launcher and outlive their time, and record them as stopped."""
        for run in once(lambda: [r for r in self._runs() if r.info.status == "RUNNING"]):
            said = claims.read(run.data.tags.get(contract.TAG_LAUNCH))
            if self._claimant.overdue(said):
                claims.kill(said)
                self.ended(str(run.info.run_id), Ended(-9, timed_out=True))


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
