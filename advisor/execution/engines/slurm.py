"""Runs training processes as SLURM jobs, using submitit. Tasks that start together form one SLURM job array.

The nodes need access to the output folder, which other users cannot read."""

from __future__ import annotations

import getpass
import logging
import math
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.execution.engines import Exit, Task
from advisor.execution.engines.local import run_task
from advisor.execution.engines.process import last_line, process_identity
from advisor.model.errors import AdvisorError

_SUBMITIT_OPTIONS = {"mem_gb", "nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task"}
"""Names of the job options that submitit itself handles. All other options are passed to sbatch unchanged."""
_QUERY_INTERVAL_S = 20.0
"""Seconds between two queries to SLURM. A job without a result counts as lost if two consecutive queries do not list it."""
_EXTRA_TIME_LIMIT_MINUTES = 5
"""Minutes by which SLURM's time limit exceeds the time limit of the training process, so that the job can report its end."""
MAX_ARRAY_JOBS = 500
"""Maximum jobs in one job array. Clusters accept about 1,000, but a smaller array starts earlier."""


class SlurmEngine:
    def __init__(
        self,
        folder: Path,
        *,
        gpus_per_trial: int,
        parallel: int | None,
        timeout_s: float | None,
        options: Mapping[str, str],
        cluster: str = "slurm",
        max_submitted: int | None = None,
    ) -> None:
        """folder: for submitit's files. parallel: maximum number of jobs of one array that run at the same time.

        options: options of `sbatch` without dashes. cluster: "local" runs jobs on this machine. max_submitted: maximum number
        of submitted jobs if each job depends on earlier results. Raises AdvisorError if submitit or SLURM is not installed, or
        if jobs have no time limit, which SLURM needs to schedule them.
        """
        try:
            import submitit
        except ImportError:
            raise AdvisorError('--on slurm needs submitit: pip install "tuning-advisor[slurm]"') from None
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise AdvisorError("SLURM's sbatch is not on this machine; run the same command where you submit jobs")
        if timeout_s is None and "time" not in options:
            raise AdvisorError("SLURM schedules by the duration of jobs: pass --timeout MINUTES, or --slurm time=MINUTES")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._executor = submitit.AutoExecutor(folder / "%j", cluster=cluster)
        self._executor.update_parameters(**_executor_parameters(gpus_per_trial, parallel, timeout_s, options))
        logging.getLogger("submitit").setLevel(logging.ERROR)  # submitit warns at each query without accounting data
        self._queue = SlurmQueue("-u", getpass.getuser()) if cluster == "slurm" else None
        self._parallel, self._max_submitted = parallel, max_submitted
        self._trainings: list[SlurmTraining] = []

    def free_capacity(self) -> int:
        """Return the number of jobs that may be submitted now: as many as one job array may have, because SLURM itself queues
        the jobs. If `parallel` is set, only one job array exists at a time, because SLURM limits each array separately."""
        unfinished_count = sum(not training.ended for training in self._trainings)
        if self._max_submitted is not None:
            return self._max_submitted - unfinished_count
        return 0 if self._parallel is not None and unfinished_count else MAX_ARRAY_JOBS

    def start(self, tasks: Sequence[Task]) -> Sequence[SlurmTraining]:
        for task in tasks:
            _stop_request_path(task).unlink(missing_ok=True)
            task.log.unlink(missing_ok=True)
        with self._executor.batch():
            jobs = [self._executor.submit(_run_task_in_job, task) for task in tasks]
        trainings = [SlurmTraining(job, task, self._queue) for job, task in zip(jobs, tasks, strict=True)]
        self._trainings += trainings
        return trainings

    def close(self) -> None:
        """Do nothing, because this engine holds no resources."""


class SlurmQueue:
    """The jobs in SLURM's queue; a single query reads all jobs, at most once in `_QUERY_INTERVAL_S` seconds."""

    def __init__(self, *options: str) -> None:
        self.answers = 0
        self._options = options
        self._queried_at, self._jobs = -math.inf, frozenset[str]()
        self._answered = False

    def has_job(self, job: str) -> bool | None:
        """Return whether SLURM's queue contained the job at the last query, or None if SLURM did not respond."""
        if time.monotonic() - self._queried_at > _QUERY_INTERVAL_S:
            self._queried_at, self._answered = time.monotonic(), False
            words = ["squeue", "-h", "-r", *self._options, "-o", "%i"]
            with suppress(OSError, subprocess.SubprocessError):
                query = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
                self._jobs, self.answers, self._answered = frozenset(query.stdout.split()), self.answers + 1, True
        return job in self._jobs if self._answered else None

    def forget_last_query(self) -> None:
        self._queried_at = -math.inf

    def has_claimed_job(self, claim: Mapping[str, Any]) -> bool | None:
        """Return `has_job` for the SLURM job that a claim names, or False without such a job or SLURM."""
        job = claim.get("slurm")
        return self.has_job(job) if isinstance(job, str) and shutil.which("squeue") is not None else False


class SlurmTraining:
    def __init__(self, job: Any, task: Task, queue: SlurmQueue | None) -> None:
        """queue: SLURM's queue, or None if the job is a process on this machine."""
        self._job, self._task, self._queue, self._stop_requests = job, task, queue, 0
        self._missing_since: int | None = None
        self.ended = False

    def poll(self) -> Exit | None:
        if not self._has_ended():
            return None
        self.ended = True
        exit, line = None, ""
        if self._job.paths.result_pickle.exists():  # submitit would wait for this file even if the job no longer exists
            try:
                exit = self._job.result()
            except Exception as error:  # submitit may raise any error for a killed job or unreadable result
                line = str(error).strip().split("\n", 1)[0]
        if exit is None:
            line = (last_line(self._task.log) if self._task.log.exists() else "") or line
            exit = Exit(1, lost=True, last_line=line)
        return replace(exit, interrupted=True, lost=False) if self._stop_requests else exit

    def _has_ended(self) -> bool:
        if self._queue is None:
            return bool(self._job.done())
        if self._job.paths.result_pickle.exists():
            return True
        if self._queue.has_job(str(self._job.job_id)) is not False:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self._queue.answers
        return self._missing_since is not None and self._queue.answers > self._missing_since

    def stop(self) -> None:
        """Create a file that asks the training process to stop. At the second call, or before its start, cancel the job."""
        self._stop_requests += 1
        with _stop_request_path(self._task).open("a") as file:
            file.write("stop\n")
        if self._stop_requests > 1 or not self._task.log.exists():
            self._job.cancel(check=False)

    def claim_details(self) -> Mapping[str, Any]:
        if self._queue is None:
            return process_identity(int(self._job.job_id))
        return {"slurm": str(self._job.job_id)}


def _run_task_in_job(task: Task) -> Exit:
    def stop_requests() -> int:
        file = _stop_request_path(task)
        return len(file.read_text().split()) if file.exists() else 0

    exit = run_task(task, stop_requests)
    # SLURM sends SIGTERM to jobs that are cancelled, are preempted or exceed their time limit.
    stopped_by_slurm = exit.code == -signal.SIGTERM and not (exit.timed_out or exit.interrupted)
    return replace(exit, lost=True) if stopped_by_slurm else exit


def _stop_request_path(task: Task) -> Path:
    return task.log.with_suffix(".stop")


def _executor_parameters(
    gpus_per_trial: int, parallel: int | None, timeout_s: float | None, options: Mapping[str, str]
) -> dict[str, Any]:
    parameters: dict[str, Any] = {"slurm_job_name": "advisor", "slurm_array_parallelism": parallel}
    parameters["gpus_per_node"] = gpus_per_trial or None
    if timeout_s is not None:
        parameters["timeout_min"] = math.ceil(timeout_s / 60) + _EXTRA_TIME_LIMIT_MINUTES
    sbatch_options: dict[str, Any] = {}
    for option, text in options.items():
        name = option.lstrip("-").replace("-", "_")
        if name == "time":
            parameters["slurm_time"] = text
        elif name in _SUBMITIT_OPTIONS:
            try:
                parameters[name] = float(text) if name == "mem_gb" else int(text)
            except ValueError:
                raise AdvisorError(f"--slurm {option}={text}: {text!r} is not a number that SLURM accepts there") from None
        else:
            sbatch_options[name] = text
    parameters["slurm_additional_parameters"] = sbatch_options or None
    if "slurm_time" in parameters:
        parameters.pop("timeout_min", None)
    return {name: value for name, value in parameters.items() if value is not None}
