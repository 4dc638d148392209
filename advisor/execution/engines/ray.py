"""Trainings on the nodes of a Ray cluster, placed by the GPUs and CPUs that each asks for.

Each training is an actor of its own that runs the command as a process of its node. Nodes need this package and what the command
names; it runs in the launcher's folder where the node has one of that name, as on a shared file system, else in Ray's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.execution.engines import Task
from advisor.execution.engines.process import Ended
from advisor.system.cluster import Cluster

_MOST_LOG = 5_000_000
"""Bytes of a log, from its end, that come back from a node."""
_AHEAD = 1
"""Trainings that may wait for a place in the cluster, so that none is idle."""


class Ray:
    """A cluster."""

    def __init__(
        self, address: str | None, *, gpus_per_trial: int | None, cpus_per_trial: float, parallel: int | None
    ) -> None:
        """address: as of `Cluster`.

        gpus_per_trial: None: one where the cluster has any. parallel: most trainings at a time; None: as many as there is room for.
        Raises AdvisorError without Ray, or where no cluster answers.
        """
        self._cluster = Cluster(address)
        self._ray = self._cluster.ray
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        self._gpus = (1 if has_gpus else 0) if gpus_per_trial is None else gpus_per_trial
        self._cpus, self._parallel = cpus_per_trial, parallel
        self._actor = _actor(self._ray)
        self._trainings: list[RayTraining] = []

    def room(self) -> int:
        """Places in the nodes that are there now, and one more, so that a place that becomes free is taken at once."""
        self._trainings = [training for training in self._trainings if not training.ended]
        most = self._parallel if self._parallel is not None else self._places() + _AHEAD
        return max(most - len(self._trainings), 0)

    def _places(self) -> int:
        """Trainings that the nodes alive have room for, all in all; a cluster that grows by demand starts with none."""
        wanted = {"GPU": float(self._gpus), "CPU": self._cpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            min(int(node.get(kind, 0) / of) for kind, of in wanted.items() if of)
            for node in nodes
            if any(wanted.values())
        )

    def start(self, tasks: Sequence[Task]) -> Sequence[RayTraining]:
        """An actor each; Ray places them."""
        placed = self._actor.options(num_gpus=self._gpus, num_cpus=self._cpus, max_concurrency=2, max_restarts=0)
        started = [RayTraining(self._ray, placed.remote(), task) for task in tasks]
        self._trainings += started
        return started

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.leave()


class RayTraining:
    """An actor and its process."""

    def __init__(self, ray: Any, actor: Any, task: Task) -> None:
        self._ray, self._actor, self._task = ray, actor, task
        task.log.parent.mkdir(parents=True, exist_ok=True)
        self._result = actor.train.remote(task, str(Path.cwd()))
        self._asked = 0
        self._end: Ended | None = None

    @property
    def ended(self) -> bool:
        """Whether it has, as far as was polled."""
        return self._end is not None

    def poll(self) -> Ended | None:
        """How it ended; lost where its node died."""
        if self._end is None and self._ray.wait([self._result], timeout=0)[0]:
            self._end = self._fetched()
        return self._end

    def _fetched(self) -> Ended:
        try:
            ended, log = self._ray.get(self._result)
        except self._ray.exceptions.RayActorError:
            return Ended(1, lost=not self._asked, interrupted=bool(self._asked))
        except self._ray.exceptions.RayError as error:
            return Ended(1, said=str(error).strip().splitlines()[-1])
        finally:
            self._ray.kill(self._actor)  # gives its GPUs back
        self._task.log.write_bytes(log)
        done: Ended = replace(ended, interrupted=bool(self._asked))
        return done

    def stop(self) -> None:
        """Ctrl-C; the second time, or where it still waits for a place, the actor is ended, and its process with it."""
        self._asked += 1
        ready, _ = self._ray.wait([self._actor.stop.remote()], timeout=5.0)
        if self._asked > 1 or not ready:
            self._ray.kill(self._actor)

    def note(self) -> Mapping[str, Any]:
        """Nothing: it ends with its launcher."""
        return {"engine": "ray"}


def _actor(ray: Any) -> Any:
    """The class of the actors, which needs Ray to be defined."""

    class Trainer:
        def __init__(self) -> None:
            self.asked = 0

        def train(self, task: Task, folder: str) -> tuple[Ended, bytes]:
            """Run the task on this node; how it ended, and the end of its log."""
            import tempfile

            from advisor.execution.engines.worker import train

            if os.path.isdir(folder):
                os.chdir(folder)
            with tempfile.TemporaryDirectory(prefix="advisor-") as own:
                log = Path(own) / task.log.name
                ended = train(replace(task, log=log), lambda: self.asked)
                return ended, log.read_bytes()[-_MOST_LOG:] if log.exists() else b""

        def stop(self) -> None:
            """Ask the process to stop."""
            self.asked += 1

    return ray.remote(Trainer)
