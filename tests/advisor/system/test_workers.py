"""Work in several processes and on several nodes, of which some die and some cannot be started."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from clusters import ray_cluster

from advisor.model.errors import AdvisorError
from advisor.system.workers import ray
from advisor.system.workers.processes import each


def _work(task: str) -> str:
    if task == "raises":
        raise OSError("no such disk")
    if task == "dies":
        os._exit(7)
    return task.upper()


def _died(task: str, status: int | str | None) -> str:
    return f"{task} {status}"


@contextmanager
def _no_more_files() -> Iterator[None]:
    """Within it nothing more can be opened, so that no process can be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.open(os.devnull, os.O_RDONLY)
    os.close(next_file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_raises_or_dies_takes_only_its_own_task_along():
    assert [*each(_work, ["a", "raises", "dies", "b"], jobs=1, died=_died)] == ["A", "raises 1", "dies 7", "B"]


def test_where_no_process_can_be_started_each_task_is_told_of():
    with _no_more_files():
        assert [*each(_work, ["a", "b"], jobs=2, died=_died)] == ["a None", "b None"]


def test_where_no_more_processes_can_be_started_the_others_do_the_work():
    def tasks() -> Iterator[str]:
        yield "a"
        with _no_more_files():
            yield "b"

    assert [*each(_work, tasks(), jobs=2, died=_died)] == ["A", "B"]


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster({"num_cpus": 2}) as cluster:
        yield cluster


def _begun_and_gone_on(folder: Path) -> str:
    """Says that it was begun, and waits to be let go."""
    (folder / f"begun-{os.getpid()}").touch()
    until = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return folder.name


def _refused(task: str) -> str:
    raise AdvisorError("this machine has no store")


@pytest.mark.slow
def test_on_a_cluster_what_raises_or_dies_takes_only_its_own_task_along(cluster):
    def each(tasks, jobs):
        return {*ray.each(_work, tasks, jobs=jobs, address=cluster.address, died=_died)}

    assert each("abcde", None) == {*"ABCDE"}
    dead = "dies it was killed on its node of the Ray cluster, perhaps for want of memory"
    assert each(["a", "dies", "b"], 1) == {"A", "B", dead}


def _times(task: str) -> tuple[float, float]:
    began = time.time()
    time.sleep(0.3)
    return began, time.time()


@pytest.mark.slow
def test_a_cluster_does_no_more_at_a_time_than_it_may(cluster):
    spans = sorted(ray.each(_times, "abcd", jobs=1, address=cluster.address, died=_died))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.slow
def test_nodes_that_cannot_do_the_work_are_told_of_in_one_line(cluster):
    for work, said in (
        (_refused, "^this machine has no store$"),
        (_work, "^a node .*OSError: no such disk; its nodes need"),
    ):
        with pytest.raises(AdvisorError, match=said):
            list(ray.each(work, ["raises"], jobs=1, address=cluster.address, died=_died))
    with pytest.raises(AdvisorError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: "):
        list(ray.each(_work, ["a"], jobs=1, address="127.0.0.1:1", died=_died))


@pytest.mark.slow
def test_what_a_dead_node_had_is_begun_again_on_another(tmp_path):
    with ray_cluster({"num_cpus": 0}) as cluster:
        doomed = cluster.add_node(num_cpus=1)
        results: list[str] = []
        asked = ray.each(_begun_and_gone_on, [tmp_path], jobs=None, address=cluster.address, died=_died)
        thread = Thread(target=lambda: results.extend(asked))
        thread.start()
        while not list(tmp_path.glob("begun-*")):
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)
        (tmp_path / "go").touch()
        cluster.add_node(num_cpus=1)
        thread.join(60)
        assert results == [tmp_path.name]
        assert len(list(tmp_path.glob("begun-*"))) == 2
