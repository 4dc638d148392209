"""Trainings as jobs of SLURM, through submitit: what is started at a time is one job array.

The folder for the output must be one that the nodes see too. It is closed to others: what a job is given may hold a password.
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

import psutil

from advisor.errors import AdvisorError
from advisor.launch.engines import Task, worker
from advisor.launch.engines.process import Ended, last_line

_OWN = {"mem_gb", "nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task"}
"""submitit's names for what all clusters know; everything else goes to sbatch as it is."""
_LOOK_S = 20.0
"""How often to ask SLURM which jobs it has. A job that is gone twice in a row and left no result is lost."""
_BEYOND_MIN = 5
"""Minutes that a job may take beyond its training's limit, to stop it and to say how it ended."""
_EVERYTHING = 10_000


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
        at_a_time: int | None = None,
    ) -> None:
        """folder: for submitit's files; options: of `sbatch`, without their dashes; cluster: "local" runs jobs on this machine.

        parallel: jobs of an array that run at a time. at_a_time: jobs to hand over at a time, where each follows from results;
        None: all. Raises AdvisorError without submitit, SLURM, or a limit of time, which SLURM's queue goes by.
        """
        submitit = _submitit()
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise AdvisorError("SLURM's sbatch is not on this machine; run the same command where you submit jobs")
        if timeout_s is None and "time" not in options:
            raise AdvisorError(
                "SLURM's queue goes by how long a job takes: pass --timeout MINUTES, or --slurm time=MINUTES"
            )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._executor = submitit.AutoExecutor(folder / "%j", cluster=cluster)
        self._executor.update_parameters(**_parameters(gpus_per_trial, parallel, timeout_s, options))
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns at each look where SLURM keeps no accounts
        self._queue = _Queue() if cluster == "slurm" else None
        self._at_a_time = at_a_time
        self._begun: list[SlurmTraining] = []

    def room(self) -> int:
        """All that there are, unless each is to follow from results: SLURM keeps the queue."""
        if self._at_a_time is None:
            return _EVERYTHING
        return self._at_a_time - sum(not training.ended for training in self._begun)

    def start(self, tasks: Sequence[Task]) -> Sequence[SlurmTraining]:
        """Submit them as one array."""
        for task in tasks:
            _stop_file(task).unlink(missing_ok=True)
            task.log.unlink(missing_ok=True)
        with self._executor.batch():
            jobs = [self._executor.submit(_train, task) for task in tasks]
        started = [SlurmTraining(job, task, self._queue) for job, task in zip(jobs, tasks, strict=True)]
        self._begun += started
        return started

    def close(self) -> None:
        """Nothing is held."""


class _Queue:
    """The jobs that SLURM has of this user, asked for all at once and now and then."""

    def __init__(self) -> None:
        self.looks = 0
        self._at, self._jobs = -math.inf, frozenset[str]()

    def has(self, job: str) -> bool:
        """Whether the job was there at the last look; so it is taken to be where SLURM does not say."""
        if time.monotonic() - self._at > _LOOK_S:
            self._at = time.monotonic()
            found = _squeue("-r", "-u", getpass.getuser(), "-o", "%i")
            if found is None:
                return True
            self._jobs, self.looks = frozenset(found), self.looks + 1
        return job in self._jobs


class SlurmTraining:
    """A job."""

    def __init__(self, job: Any, task: Task, queue: _Queue | None) -> None:
        """queue: None: the job is a process of this machine."""
        self._job, self._task, self._queue, self._asked = job, task, queue, 0
        self._missed_at: int | None = None
        self.ended = False

    def poll(self) -> Ended | None:
        """How it ended; None while it waits or runs."""
        if not self._over():
            return None
        self.ended = True
        ended = self._result()
        return replace(ended, interrupted=True, lost=False) if self._asked else ended

    def _result(self) -> Ended:
        said = ""
        if self._queue is None or self._job.paths.result_pickle.exists():  # submitit would wait for it for ever
            try:
                ended: Ended = self._job.result()
            except (
                Exception
            ) as error:  # whatever submitit makes of a job that was cut off, or of a result that cannot be read
                said = str(error).strip().split("\n", 1)[0]
            else:
                return ended
        if self._task.log.exists():
            said = last_line(self._task.log) or said
        return Ended(1, lost=True, said=said)

    def _over(self) -> bool:
        if self._queue is None:
            return bool(self._job.done())
        if self._job.paths.result_pickle.exists():
            return True
        if self._queue.has(str(self._job.job_id)):
            self._missed_at = None
        elif self._missed_at is None:
            self._missed_at = self._queue.looks
        return self._missed_at is not None and self._queue.looks > self._missed_at

    def stop(self) -> None:
        """Ask the training, by a file, as Ctrl-C does; cancel the job where it still waits, or when asked again."""
        self._asked += 1
        with _stop_file(self._task).open("a") as file:
            file.write("stop\n")
        if self._asked > 1 or not self._task.log.exists():
            self._job.cancel(check=False)

    def note(self) -> Mapping[str, Any]:
        """The job's number; on this machine that of its process."""
        if self._queue is not None:
            return {"slurm": str(self._job.job_id)}
        try:
            began = psutil.Process(int(self._job.job_id)).create_time()
        except psutil.Error:
            began = 0.0
        return {"training": int(self._job.job_id), "training_began": began}


def lives(said: Mapping[str, Any]) -> bool | None:
    """Whether SLURM still has the job that a claim names; False where there is no SLURM to ask, None where it does not answer."""
    job = said.get("slurm")
    if not isinstance(job, str) or shutil.which("squeue") is None:
        return False
    found = _squeue("-j", job, "-o", "%i")
    return None if found is None else bool(found)


def _squeue(*options: str) -> list[str] | None:
    """What squeue lists, line by line; None where it does not answer."""
    tool = shutil.which("squeue")
    if tool is None:
        return None
    try:
        asked = subprocess.run([tool, "-h", *options], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    if asked.returncode and "invalid job id" in asked.stderr.lower():
        return []  # so it says of a job that ended a while ago
    return asked.stdout.split() if asked.returncode == 0 else None


def _train(task: Task) -> Ended:
    def asked() -> int:
        file = _stop_file(task)
        return len(file.read_text().split()) if file.exists() else 0

    ended = worker.train(task, asked)
    by_slurm = ended.code == -signal.SIGTERM and not (
        ended.timed_out or ended.interrupted
    )  # cancelled, preempted, out of time
    return replace(ended, lost=True) if by_slurm else ended


def _stop_file(task: Task) -> Path:
    return task.log.with_suffix(".stop")


def _parameters(
    gpus_per_trial: int, parallel: int | None, timeout_s: float | None, options: Mapping[str, str]
) -> dict[str, Any]:
    """What submitit is told, by its names."""
    told: dict[str, Any] = {"slurm_job_name": "advisor"}
    if gpus_per_trial:
        told["gpus_per_node"] = gpus_per_trial
    if parallel is not None:
        told["slurm_array_parallelism"] = parallel
    if timeout_s is not None:
        told["timeout_min"] = math.ceil(timeout_s / 60) + _BEYOND_MIN
    more: dict[str, Any] = {}
    for option, text in options.items():
        name = option.lstrip("-").replace("-", "_")
        if name == "time":
            told["slurm_time"] = text
        elif name in _OWN:
            told[name] = _number(option, text)
        else:
            more[name] = text
    if more:
        told["slurm_additional_parameters"] = more
    if "slurm_time" in told:
        told.pop("timeout_min", None)
    return told


def _number(option: str, text: str) -> float:
    try:
        return float(text) if option.endswith(("mem_gb", "mem-gb")) else int(text)
    except ValueError:
        raise AdvisorError(f"--slurm {option}={text}: {text!r} is no number that SLURM takes there") from None


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise AdvisorError('--on slurm needs submitit: pip install "tuning-advisor[slurm]"') from None
    return submitit
