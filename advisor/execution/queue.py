"""Selects the jobs to begin next, from a fixed list or by an adaptive sampler that uses the results so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from advisor.execution.job import Job, JobKey, job_seed, jobs, trial_count
from advisor.execution.ledger.record import JobEntry, JobOutcome, mlflow_param_text
from advisor.model.space import HyperparameterValue, equal_values
from advisor.model.spec import Parameter, StudySpec
from advisor.planning.sampling import adaptive
from advisor.planning.sampling.adaptive import Observation
from advisor.tracking.study.inference import parse_value

_SILENT_JOB_RETRY_S = 15.0
"""Seconds until a job is offered again if the launcher that claimed the job sends no heartbeat."""

JobEntryReader = Callable[[], Sequence[JobEntry]]


class ListedQueue:
    """Queue of jobs that are known in advance."""

    def __init__(self, all_jobs: Sequence[Job]) -> None:
        self.total = len(all_jobs)
        self._waiting = deque(all_jobs)
        self._silent: deque[tuple[float, Job]] = deque()

    def next(self, read_entries: JobEntryReader, limit: int = 1) -> Sequence[Job]:  # noqa: ARG002
        """Return up to `limit` jobs to begin now. Jobs whose launchers send no heartbeat come last."""
        if not self._waiting:
            now = time.monotonic()
            while self._silent and self._silent[0][0] <= now:
                self._waiting.append(self._silent.popleft()[1])
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def defer_claimed_job(self, job: Job, *, silent: bool) -> None:
        """Record that another launcher has begun the job. silent: True if the other launcher may have failed."""
        if silent:
            self._silent.append((time.monotonic() + _SILENT_JOB_RETRY_S, job))

    def requeue(self, job: Job) -> None:
        self._waiting.appendleft(job)

    def may_return_jobs(self) -> bool:
        """Return True if `next` may still return jobs later, even if it returns no job now."""
        return bool(self._waiting or self._silent)


class AdaptiveQueue:
    """Queue of jobs whose hyperparameters an adaptive sampler suggests from the results of this and preceding studies."""

    def __init__(self, spec: StudySpec, trials: int, first_seed: int, earlier: Sequence[Observation]) -> None:
        self._spec, self._trials, self._seed, self._earlier = spec, trials, first_seed, earlier
        self._repeats = spec.seeds or 1
        self.total = trials * self._repeats
        self._retry_at, self._silent, self._again = 0.0, False, False

    def next(self, read_entries: JobEntryReader, limit: int = 1) -> Sequence[Job]:  # noqa: ARG002
        """Return the first job that has neither ended nor been claimed. All repeats of a trial come before the next trial."""
        if time.monotonic() < self._retry_at:
            return ()
        begun_jobs = {entry.key: entry for entry in read_entries()}
        self._silent, self._again = any(entry.state == "silent" for entry in begun_jobs.values()), False
        taken_keys = {key for key, entry in begun_jobs.items() if entry.state != "open"}
        free_keys = ((n, r) for n in range(self._trials) for r in range(self._repeats) if (n, r) not in taken_keys)
        key = next(free_keys, None)
        if key is None:
            self._retry_at = time.monotonic() + _SILENT_JOB_RETRY_S
            return ()
        number, repeat = key
        params = None
        begun_job = begun_jobs.get(key)
        if begun_job is not None and begun_job.stop_tag:
            params = parse_params(self._spec, begun_job.params)
        if params is None and repeat and (number, 0) in begun_jobs:
            params = parse_params(self._spec, begun_jobs[number, 0].params)
        if params is None:
            history = [*self._earlier, *self._observations(begun_jobs, number)]
            params = adaptive.suggest_trial(self._spec, history, number=len(self._earlier) + number)
        return (Job(number, repeat, job_seed(self._spec, key, self._seed), params),)

    def defer_claimed_job(self, job: Job, *, silent: bool) -> None:
        """Do nothing: the next call of `read_entries` shows the state of the job."""

    def requeue(self, job: Job) -> None:  # noqa: ARG002
        """Make `next` read all jobs again immediately, because the tracking store now shows that this job is free."""
        self._retry_at, self._again = 0.0, True

    def may_return_jobs(self) -> bool:
        return self._silent or self._again

    def _observations(self, begun: Mapping[JobKey, JobEntry], number: int) -> Iterable[Observation]:
        """Yield the trials so far as observations, without trial `number`, which the sampler will suggest."""
        for n in range(self._trials):
            entries = [begun[n, r] for r in range(self._repeats) if (n, r) in begun and begun[n, r].state != "open"]
            params = parse_params(self._spec, entries[0].params) if entries and n != number else None
            if params is None:
                continue
            outcomes = [entry.outcome for entry in entries if entry.outcome is not None]
            yield Observation(params, _mean_objective(outcomes), running=len(outcomes) < self._repeats)


JobQueue: TypeAlias = ListedQueue | AdaptiveQueue
"""The jobs of a study, in the order in which they are begun."""


def make_queue(
    spec: StudySpec, trials: int | None, *, first_seed: int, read_earlier: Callable[[], Sequence[JobEntry]]
) -> JobQueue:
    """Return the job queue of a study. trials: None for the number in the study file. read_earlier: function that reads the trials
    of preceding studies for an adaptive sampler. Raises AdvisorError if the number of trials is unknown."""
    if spec.sampler.kind != "adaptive":
        return ListedQueue(jobs(spec, trials, first_seed=first_seed))
    return AdaptiveQueue(spec, trial_count(spec, trials), first_seed, entries_as_observations(spec, read_earlier()))


def entries_as_observations(spec: StudySpec, entries: Iterable[JobEntry]) -> list[Observation]:
    """Return trials of other studies as observations for the sampler. Trials outside this study's ranges are included."""
    parsed_entries = ((parse_params(spec, entry.params, anywhere=True), entry.outcome) for entry in entries)
    return [Observation(p, _mean_objective([o])) for p, o in parsed_entries if p is not None and o is not None]


def _mean_objective(outcomes: Sequence[JobOutcome]) -> float | None:
    """Return the mean of the best objective values of a trial's runs, or None if a run failed, because the trial's setting is
    then unsuitable. Stopped and pruned runs count, because a full run would reach at least the same value."""
    values = [o.best for o in outcomes if o.best is not None and o.status in ("complete", "stopped", "pruned")]
    return fmean(values) if values and len(values) == len(outcomes) else None


def parse_params(spec: StudySpec, texts: Mapping[str, str], *, anywhere: bool = False) -> dict[str, HyperparameterValue] | None:
    """Parse hyperparameters from MLflow's texts. Return None if a value is outside the study's search space. anywhere: if True,
    also accept numbers outside their ranges, forbidden regions, and other values of fixed hyperparameters."""
    params: dict[str, HyperparameterValue] = {}
    for name, parameter in spec.parameters.items():
        if name not in texts:
            continue
        value = _parse_value(parameter, texts[name], anywhere=anywhere)
        if value is None:
            return None
        params[name] = value
    for name, parameter in spec.parameters.items():
        is_active = all(params.get(parent) == value for parent, value in (parameter.when or {}).items())
        if parameter.role != "derived" and is_active and name not in params:
            return None
    return params if anywhere or spec.forbidden_region_of(params) is None else None


def _parse_value(parameter: Parameter, text: str, *, anywhere: bool) -> HyperparameterValue | None:
    allowed = (parameter.value,) if parameter.role == "fixed" and parameter.value is not None else parameter.options
    parsed = parse_value(text)
    if allowed:
        matches = (v for v in allowed if mlflow_param_text(v) == text or (parsed is not None and equal_values(parsed, v)))
        match = next(matches, None)
        return parsed if match is None and anywhere and parameter.role == "fixed" else match
    if parsed is None or isinstance(parsed, bool | str) or (parameter.type == "int" and not isinstance(parsed, int)):
        return None
    value = parsed if parameter.type == "int" else float(parsed)
    is_allowed = parameter.role == "derived" or (parameter.numeric and (anywhere or parameter.contains(value)))
    return value if is_allowed and math.isfinite(value) else None
