"""One piece of work after the other on the nodes of a Ray cluster, which need this package and share no disk with this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from advisor.model.errors import AdvisorError
from advisor.system.cluster import Cluster
from advisor.version import __version__

Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING = 64
"""Pieces that a cluster is given at least, however few processors it has yet."""
_NODES = 3
"""Nodes that may die under a task before it is given up: machines that are lent cheaply are taken away again."""


def each(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int | None,
    address: str | None,
    died: Callable[[Task, str], Result],
) -> Iterator[Result]:
    """The results of `work` on each task, as they come.

    work: a function that can be pickled, as its tasks and results; an AdvisorError that it raises ends all of it. jobs: most tasks
    at a time; None: as many as the cluster has processors. address: as of `Cluster`. died: makes the result of a task whose process
    or node ended under it, given why. Raises AdvisorError without Ray, or where no cluster answers or its nodes cannot do the work.
    """
    cluster = Cluster(address)
    try:
        # Some wait on the cluster, which grows by them if it can.
        most = max(_WAITING, 2 * int(cluster.ray.cluster_resources().get("CPU", 0))) if jobs is None else jobs
        yield from _Pieces(cluster.ray, work, tasks, died).results(most)
    finally:
        cluster.leave()


class _Pieces:
    """Pieces of one work: those that wait, and those that the cluster has."""

    def __init__(self, ray: Any, work: Callable[[Any], Any], tasks: Iterable[Any], died: Callable[[Any, str], Any]):
        self._ray, self._died = ray, died
        # Ray's own retries also repeat what ran out of memory, without end. Nodes take turns, for all read and write at once.
        self._remote = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_serve)
        self._work = ray.put(work)
        self._waiting = deque((task, _NODES) for task in tasks)
        self._running: dict[Any, tuple[Any, int]] = {}

    def results(self, most: int) -> Iterator[Any]:
        """The results as they come, with at most so many pieces on the cluster."""
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < most:
                    task, nodes = self._waiting.popleft()
                    self._running[self._remote.remote(self._work, task)] = task, nodes
                (done, *_), _ = self._ray.wait(list(self._running), num_returns=1)
                yield from self._result(done)
        finally:
            for left in self._running:  # the cluster may go on without us
                self._ray.cancel(left, force=True)

    def _result(self, done: Any) -> Iterator[Any]:
        """The result of a piece; none where its node died and another one is asked."""
        errors = self._ray.exceptions
        task, nodes = self._running.pop(done)
        try:
            result = self._ray.get(done)
        except (errors.NodeDiedError, errors.ObjectLostError):
            if nodes > 1:
                self._waiting.append((task, nodes - 1))
            else:
                yield self._died(task, f"{_NODES} nodes of the Ray cluster died under it")
        except errors.OutOfMemoryError:
            yield self._died(task, "its node of the Ray cluster ran out of memory; try fewer --jobs")
        except errors.WorkerCrashedError:
            yield self._died(task, "it was killed on its node of the Ray cluster, perhaps for want of memory")
        except errors.RayError as error:
            raise _cannot(error) from None
        else:
            yield result


def _serve(work: Callable[[Task], Result], task: Task) -> Result:
    return work(task)


def _cannot(error: Any) -> AdvisorError:
    """What to say where nodes cannot even begin with the work."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, AdvisorError):
        return AdvisorError(str(cause))
    last = str(error).strip().splitlines()[-1]
    return AdvisorError(
        f'a node of the Ray cluster cannot do the work: {last}; its nodes need "tuning-advisor[ray]=={__version__}", too'
    )
