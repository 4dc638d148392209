"""Trainings as jobs of SLURM, through submitit. Trainings that start together are one job array.

The output folder must be visible to the nodes. It is closed to other users: the data of a job may contain a password.
"""

from __future__ import annotations

import getpass
import logging
import math
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.execution.engines import Exit, Task, node
from advisor.execution.engines.process import last_line, process_note
from advisor.model.errors import AdvisorError

_SUBMITIT_OPTIONS = {"mem_gb", "nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task"}
"""Options that submitit knows by these names. All others go to sbatch unchanged."""
_QUERY_S = 20.0
"""Pause between two queries of SLURM. A job that is missing twice in a row and left no result is lost."""
_EXTRA_MIN = 5
"""Minutes that a job may take beyond its training's time limit, to stop it and to report how it ended."""
MAX_ARRAY = 500
"""Maximum jobs in an array. Clusters accept about 1,000; the first array trains while the next is submitted."""


class Slurm:
    """Jobs of one cluster."""

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
        """folder: for submitit's files. parallel: maximum jobs of an array that run at a time.

        options: of `sbatch`, without their dashes. cluster: "local" runs jobs on this machine. max_submitted: maximum jobs to
        submit at a time (None: all), if each follows from results. Raises AdvisorError without submitit, SLURM, or a time limit,
        by which SLURM schedules.
        """
        submitit = _import_submitit()
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise AdvisorError("SLURM's sbatch is not on this machine; run the same command where you submit jobs")
        if timeout_s is None and "time" not in options:
            raise AdvisorError(
                "SLURM schedules by the duration of jobs: pass --timeout MINUTES, or --slurm time=MINUTES"
            )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._executor = submitit.AutoExecutor(folder / "%j", cluster=cluster)
        self._executor.update_parameters(**_parameters(gpus_per_trial, parallel, timeout_s, options))
        logging.getLogger("submitit").setLevel(logging.ERROR)  # warns at each query if SLURM keeps no accounts
        self._queue = SlurmQueue("-u", getpass.getuser()) if cluster == "slurm" else None
        self._parallel, self._max_submitted = parallel, max_submitted
        self._trainings: list[SlurmTraining] = []

    def room(self) -> int:
        """Return the size of an array, because SLURM keeps the queue.

        With `parallel` there is one array at a time, because SLURM limits the running jobs of each array by itself.
        """
        unfinished = sum(not training.ended for training in self._trainings)
        if self._max_submitted is not None:
            return self._max_submitted - unfinished
        return 0 if self._parallel is not None and unfinished else MAX_ARRAY

    def start(self, tasks: Sequence[Task]) -> Sequence[SlurmTraining]:
        """Submit the tasks as one array."""
        for task in tasks:
            _stop_file(task).unlink(missing_ok=True)
            task.log.unlink(missing_ok=True)
        with self._executor.batch():
            jobs = [self._executor.submit(_train, task) for task in tasks]
        started = [SlurmTraining(job, task, self._queue) for job, task in zip(jobs, tasks, strict=True)]
        self._trainings += started
        return started

    def close(self) -> None:
        """Nothing to release."""


class SlurmQueue:
    """The jobs that SLURM knows, queried all together and rarely."""

    def __init__(self, *options: str) -> None:
        """options: of squeue, to select jobs."""
        self.answers = 0
        """Number of queries that SLURM answered."""
        self._options = options
        self._queried_at, self._jobs = -math.inf, frozenset[str]()
        self._answered = False

    def has(self, job: str) -> bool | None:
        """Return whether the last query listed the job, or None if SLURM did not answer."""
        if time.monotonic() - self._queried_at > _QUERY_S:
            self._queried_at, jobs = time.monotonic(), _squeue("-r", *self._options, "-o", "%i")
            self._answered = jobs is not None
            if jobs is not None:
                self._jobs, self.answers = frozenset(jobs), self.answers + 1
        return job in self._jobs if self._answered else None

    def forget(self) -> None:
        """Query again at the next `has`."""
        self._queried_at = -math.inf

    def contains(self, claim: Mapping[str, Any]) -> bool | None:
        """As `has`, for the job that a claim names; False if it names none, or there is no SLURM here."""
        job = claim.get("slurm")
        return self.has(job) if isinstance(job, str) and shutil.which("squeue") is not None else False


class SlurmTraining:
    """A job."""

    def __init__(self, job: Any, task: Task, queue: SlurmQueue | None) -> None:
        """queue: None if the job is a process of this machine."""
        self._job, self._task, self._queue, self._stop_requests = job, task, queue, 0
        self._missing_since: int | None = None
        self.ended = False

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it waits or runs."""
        if not self._is_over():
            return None
        self.ended = True
        exit = self._exit()
        return replace(exit, interrupted=True, lost=False) if self._stop_requests else exit

    def _exit(self) -> Exit:
        line = ""
        if self._job.paths.result_pickle.exists():  # submitit would wait for it, even if the job is gone
            try:
                exit: Exit = self._job.result()
            except Exception as error:  # any error of submitit about a killed job or an unreadable result
                line = str(error).strip().split("\n", 1)[0]
            else:
                return exit
        if self._task.log.exists():
            line = last_line(self._task.log) or line
        return Exit(1, lost=True, last_line=line)

    def _is_over(self) -> bool:
        if self._queue is None:
            return bool(self._job.done())
        if self._job.paths.result_pickle.exists():
            return True
        if self._queue.has(str(self._job.job_id)) is not False:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self._queue.answers
        return self._missing_since is not None and self._queue.answers > self._missing_since

    def stop(self) -> None:
        """Request the training to stop, by a file; cancel the job if it still waits, or at the second request."""
        self._stop_requests += 1
        with _stop_file(self._task).open("a") as file:
            file.write("stop\n")
        if self._stop_requests > 1 or not self._task.log.exists():
            self._job.cancel(check=False)

    def note(self) -> Mapping[str, Any]:
        """Return the number of the job, or the process of a job on this machine."""
        if self._queue is None:
            return process_note(int(self._job.job_id))
        return {"slurm": str(self._job.job_id)}


def _squeue(*options: str) -> list[str] | None:
    """Return the lines that squeue prints, or None if it fails."""
    tool = shutil.which("squeue")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, "-h", *options], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def _train(task: Task) -> Exit:
    def stop_requests() -> int:
        file = _stop_file(task)
        return len(file.read_text().split()) if file.exists() else 0

    exit = node.train(task, stop_requests)
    # SLURM ends jobs that are cancelled, preempted or out of time by this signal.
    by_slurm = exit.code == -signal.SIGTERM and not (exit.timed_out or exit.interrupted)
    return replace(exit, lost=True) if by_slurm else exit


def _stop_file(task: Task) -> Path:
    return task.log.with_suffix(".stop")


def _parameters(
    gpus_per_trial: int, parallel: int | None, timeout_s: float | None, options: Mapping[str, str]
) -> dict[str, Any]:
    """Return submitit's parameters."""
    parameters: dict[str, Any] = {"slurm_job_name": "advisor"}
    if gpus_per_trial:
        parameters["gpus_per_node"] = gpus_per_trial
    if parallel is not None:
        parameters["slurm_array_parallelism"] = parallel
    if timeout_s is not None:
        parameters["timeout_min"] = math.ceil(timeout_s / 60) + _EXTRA_MIN
    others: dict[str, Any] = {}
    for option, text in options.items():
        name = option.lstrip("-").replace("-", "_")
        if name == "time":
            parameters["slurm_time"] = text
        elif name in _SUBMITIT_OPTIONS:
            parameters[name] = _number(option, text)
        else:
            others[name] = text
    if others:
        parameters["slurm_additional_parameters"] = others
    if "slurm_time" in parameters:
        parameters.pop("timeout_min", None)
    return parameters


def _number(option: str, text: str) -> float:
    try:
        return float(text) if option.endswith(("mem_gb", "mem-gb")) else int(text)
    except ValueError:
        raise AdvisorError(f"--slurm {option}={text}: {text!r} is not a number that SLURM accepts there") from None


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise AdvisorError('--on slurm needs submitit: pip install "tuning-advisor[slurm]"') from None
    return submitit
