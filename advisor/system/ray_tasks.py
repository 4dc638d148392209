"""Connects to a Ray cluster, and distributes tasks over its nodes, which need this package but no common disk."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from advisor import __version__
from advisor.model.errors import AdvisorError

Task = TypeVar("Task")
Result = TypeVar("Result")

_CONNECT_TIMEOUT_S = 10.0
_MIN_SUBMITTED_TASKS = 64
"""Minimum number of tasks submitted at a time, so that an autoscaling cluster adds nodes."""
_MAX_NODE_FAILURES = 3
"""Node failures after which the interrupted task counts as failed; a single failure is usual on spot machines."""


class RayCluster:
    """A connection to a Ray cluster. `disconnect` closes it, unless the process was already connected before."""

    def __init__(self, address: str | None) -> None:
        """address: the head node, "auto" for a running cluster, or None for RAY_ADDRESS or else a new local cluster. Raises
        AdvisorError if Ray is not installed or no Ray cluster responds."""
        # A crashed worker is reported in one line; the output of Ray itself would fill half a page.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        try:
            import ray
        except ImportError:
            raise AdvisorError('--on ray needs Ray: pip install "tuning-advisor[ray]"') from None
        self.ray: Any = ray
        self._connected_here = not self.ray.is_initialized()
        if self._connected_here:
            logging.getLogger("ray").setLevel(logging.ERROR)
            shown_address = address or os.environ.get("RAY_ADDRESS") or "this machine"
            host, _, port = shown_address.removeprefix("ray://").rpartition(":")
            try:
                if host and port.isdigit():  # else Ray would retry a connection to a wrong address for ten minutes
                    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
                self.ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise AdvisorError(f"no Ray cluster responds at {shown_address}: {str(error).splitlines()[0]}") from None

    def disconnect(self) -> None:
        """Close the connection. After the disconnection, Ray cancels all tasks and actors of this process."""
        if self._connected_here:
            self.ray.shutdown()


def map_on_ray(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int | None,
    address: str | None,
    failed: Callable[[Task, str], Result],
) -> Iterator[Result]:
    """Yield `work(task)` for each task, in order of completion. All must be picklable. jobs: maximum parallel tasks (None: the
    cluster's CPUs). failed: returns the result of a task whose process or node failed, from the reason. Raises AdvisorError if
    Ray is not installed, no cluster responds, no node can run `work`, or `work` raises an AdvisorError."""
    cluster = RayCluster(address)
    try:
        cluster_cpus = int(cluster.ray.cluster_resources().get("CPU", 0))
        yield from _RayTasks(cluster.ray, work, tasks, failed).results(jobs or max(_MIN_SUBMITTED_TASKS, 2 * cluster_cpus))
    finally:
        cluster.disconnect()


class _RayTasks:
    def __init__(self, ray: Any, work: Callable[[Any], Any], tasks: Iterable[Any], failed: Callable[[Any, str], Any]):
        self._ray, self._failed = ray, failed
        # Ray's own retries would repeat a task that runs out of memory again and again. SPREAD distributes the disk and
        # network load.
        self._remote = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(lambda work, task: work(task))
        self._work = ray.put(work)
        self._waiting = deque((task, _MAX_NODE_FAILURES) for task in tasks)
        self._submitted: dict[Any, tuple[Any, int]] = {}

    def results(self, max_submitted: int) -> Iterator[Any]:
        try:
            while self._waiting or self._submitted:
                while self._waiting and len(self._submitted) < max_submitted:
                    task, nodes = self._waiting.popleft()
                    self._submitted[self._remote.remote(self._work, task)] = task, nodes
                (done, *_), _ = self._ray.wait(list(self._submitted), num_returns=1)
                yield from self._yield_result(done)
        finally:
            for reference in self._submitted:  # the cluster may outlive this process, so cancel the remaining tasks
                self._ray.cancel(reference, force=True)

    def _yield_result(self, done: Any) -> Iterator[Any]:
        errors = self._ray.exceptions
        task, nodes = self._submitted.pop(done)
        try:
            result = self._ray.get(done)
        except (errors.NodeDiedError, errors.ObjectLostError):
            if nodes > 1:
                self._waiting.append((task, nodes - 1))
            else:
                yield self._failed(task, f"{_MAX_NODE_FAILURES} nodes of the Ray cluster failed while working on this task")
        except errors.OutOfMemoryError:
            yield self._failed(task, "its node of the Ray cluster ran out of memory; try fewer --jobs")
        except errors.WorkerCrashedError:
            yield self._failed(
                task, "its process on the Ray cluster was killed, perhaps because memory ran out; try fewer --jobs"
            )
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, AdvisorError):
                raise AdvisorError(str(cause)) from None
            reason = str(error).strip().splitlines()[-1]
            raise AdvisorError(
                f"a node of the Ray cluster cannot run the work: {reason}; install "
                f'"tuning-advisor[ray]=={__version__}" on every node'
            ) from None
        else:
            yield result
