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

from advisor.execution.engines import Task, worker
from advisor.execution.engines.process import Ended, last_line, named
from advisor.model.errors import AdvisorError

_OWN = {"mem_gb", "nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task"}
"""submitit's names for what all clusters know; everything else goes to sbatch as it is."""
_LOOK_S = 20.0
"""How often to ask SLURM which jobs it has. A job that is gone twice in a row and left no result is lost."""
_BEYOND_MIN = 5
"""Minutes that a job may take beyond its training's limit, to stop it and to say how it ended."""
AT_ONCE = 500
"""Jobs of one array; clusters take 1,000 or so, and those of the first array train while the next is made."""


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
        self._queue = Queue("-u", getpass.getuser()) if cluster == "slurm" else None
        self._parallel, self._at_a_time = parallel, at_a_time
        self._begun: list[SlurmTraining] = []

    def room(self) -> int:
        """An array of them, for SLURM keeps the queue; one array at a time where it is to hold them back; fewer where each follows
        from results."""
        left = sum(not training.ended for training in self._begun)
        if self._at_a_time is not None:
            return self._at_a_time - left
        return 0 if self._parallel is not None and left else AT_ONCE

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


class Queue:
    """The jobs that SLURM has, asked for all at once and now and then."""

    def __init__(self, *options: str) -> None:
        """options: of squeue, for some jobs only."""
        self.looks = 0
        """How often SLURM has answered."""
        self._options = options
        self._at, self._jobs = -math.inf, frozenset[str]()
        self._answers = False

    def has(self, job: str) -> bool | None:
        """Whether the job was there at the last look; None where SLURM did not answer."""
        if time.monotonic() - self._at > _LOOK_S:
            self._at, found = time.monotonic(), _squeue("-r", *self._options, "-o", "%i")
            self._answers = found is not None
            if found is not None:
                self._jobs, self.looks = frozenset(found), self.looks + 1
        return job in self._jobs if self._answers else None

    def forget(self) -> None:
        """The next question is answered by a new look."""
        self._at = -math.inf

    def lives(self, said: Mapping[str, Any]) -> bool | None:
        """Whether SLURM has the job that a claim names; False where it names none, or there is no SLURM to ask; else as `has`."""
        job = said.get("slurm")
        return self.has(job) if isinstance(job, str) and shutil.which("squeue") is not None else False


class SlurmTraining:
    """A job."""

    def __init__(self, job: Any, task: Task, queue: Queue | None) -> None:
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
        if self._job.paths.result_pickle.exists():  # submitit would wait for it, and for ever where the job is gone
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
        if self._queue.has(str(self._job.job_id)) is not False:
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
        return {"slurm": str(self._job.job_id)} if self._queue is not None else named(int(self._job.job_id))


def _squeue(*options: str) -> list[str] | None:
    """What squeue lists, line by line; None where it does not answer."""
    tool = shutil.which("squeue")
    if tool is None:
        return None
    try:
        asked = subprocess.run([tool, "-h", *options], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
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
