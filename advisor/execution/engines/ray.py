"""Runs training processes on the nodes of a Ray cluster. A Ray actor starts each process. All nodes need this package and the
files that the training command uses. The command runs in the launcher's working directory if it exists."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.execution.engines import Exit, Task
from advisor.execution.engines.local import run_task
from advisor.system.ray_tasks import RayCluster

_MAX_LOG_BYTES = 5_000_000
_MAX_EXTRA_TRAININGS = 1
"""Number of training processes to submit beyond the capacity of the cluster, so that no resources are idle."""
_STOP_TIMEOUT_S = 5.0


class RayEngine:
    def __init__(self, address: str | None, *, gpus_per_trial: int | None, cpus_per_trial: float, parallel: int | None) -> None:
        """address: as for `RayCluster`. gpus_per_trial: None for one GPU if the cluster has any. parallel: maximum number of
        training processes at a time. Raises AdvisorError without Ray or a Ray cluster."""
        self._cluster = RayCluster(address)
        self._ray = self._cluster.ray
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        self._gpus = (1 if has_gpus else 0) if gpus_per_trial is None else gpus_per_trial
        self._cpus, self._parallel = cpus_per_trial, parallel
        self._actor = _define_actor_class(self._ray)
        self._trainings: list[RayTraining] = []

    def free_capacity(self) -> int:
        """Return the number of training processes that the current nodes can still run, plus `_MAX_EXTRA_TRAININGS`."""
        self._trainings = [training for training in self._trainings if not training.ended]
        limit = self._parallel
        if limit is None:  # an autoscaling cluster may have no nodes yet
            resources = {kind: need for kind, need in (("GPU", float(self._gpus)), ("CPU", self._cpus)) if need}
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"] and resources]
            capacity = sum(min(int(node.get(kind, 0) / need) for kind, need in resources.items()) for node in nodes)
            limit = capacity + _MAX_EXTRA_TRAININGS
        return max(limit - len(self._trainings), 0)

    def start(self, tasks: Sequence[Task]) -> Sequence[RayTraining]:
        actor_class = self._actor.options(num_gpus=self._gpus, num_cpus=self._cpus, max_concurrency=2, max_restarts=0)
        trainings = [RayTraining(self._ray, actor_class.remote(), task) for task in tasks]
        self._trainings += trainings
        return trainings

    def close(self) -> None:
        self._cluster.disconnect()


class RayTraining:
    def __init__(self, ray: Any, actor: Any, task: Task) -> None:
        self._ray, self._actor, self._task = ray, actor, task
        task.log.parent.mkdir(parents=True, exist_ok=True)
        self._result = actor.train.remote(task, str(Path.cwd()))
        self._stop_requests = 0
        self._exit: Exit | None = None
        self.ended = False

    def poll(self) -> Exit | None:
        """Return how the training process ended, or None while the process runs. If its node failed, the exit is lost."""
        if self._exit is None and self._ray.wait([self._result], timeout=0)[0]:
            was_stopped = bool(self._stop_requests)
            try:
                exit, log = self._ray.get(self._result)
                self._task.log.write_bytes(log)
                self._exit = replace(exit, interrupted=was_stopped)
            except self._ray.exceptions.RayActorError:
                self._exit = Exit(1, lost=not was_stopped, interrupted=was_stopped)
            except self._ray.exceptions.RayError as error:
                self._exit = Exit(1, last_line=str(error).strip().splitlines()[-1])
            finally:
                self.ended = True
                self._ray.kill(self._actor)  # killing the Ray actor releases its GPUs
        return self._exit

    def stop(self) -> None:
        """Ask the training process to stop. At the second call, or if the Ray actor has not started, kill the actor."""
        self._stop_requests += 1
        ready, _ = self._ray.wait([self._actor.stop.remote()], timeout=_STOP_TIMEOUT_S)
        if self._stop_requests > 1 or not ready:
            self._ray.kill(self._actor)

    def claim_details(self) -> Mapping[str, Any]:
        """Return only the engine's name, because a Ray training process ends with its launcher."""
        return {"engine": "ray"}


def _define_actor_class(ray: Any) -> Any:
    """Return the class of the Ray actors. Its definition needs the imported Ray module."""

    class Trainer:
        def __init__(self) -> None:
            self.stop_requests = 0

        def train(self, task: Task, folder: str) -> tuple[Exit, bytes]:
            """Run the task on this node. Return (how the process ended, last bytes of its log)."""
            if os.path.isdir(folder):
                os.chdir(folder)
            with tempfile.TemporaryDirectory(prefix="advisor-") as own:
                log = Path(own) / task.log.name
                exit = run_task(replace(task, log=log), lambda: self.stop_requests)
                return exit, log.read_bytes()[-_MAX_LOG_BYTES:] if log.exists() else b""

        def stop(self) -> None:
            self.stop_requests += 1

    return ray.remote(Trainer)
