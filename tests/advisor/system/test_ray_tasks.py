"""Tasks on a Ray cluster, whose processes and nodes may fail."""

import os
import time
from itertools import pairwise
from threading import Thread

import pytest
from clusters import ray_cluster

from advisor.model.errors import AdvisorError
from advisor.system.ray_tasks import map_on_ray

pytestmark = pytest.mark.slow


def _work(task):
    if task == "raises":
        raise OSError("no such disk")
    if task == "crashes":
        os._exit(7)
    return task.upper()


def _failed(task, reason):
    return f"{task}: {reason}"


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster({"num_cpus": 2}) as cluster:
        yield cluster


def _wait_for_go(folder):
    (folder / f"begun-{os.getpid()}").touch()
    until = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return folder.name


def _refuse(task):
    raise AdvisorError("this machine has no store")


def _times(task):
    began = time.time()
    time.sleep(0.3)
    return began, time.time()


def test_a_crash_fails_only_its_own_task(cluster):
    def results(tasks, jobs):
        return {*map_on_ray(_work, tasks, jobs=jobs, address=cluster.address, failed=_failed)}

    assert results("abcde", None) == {*"ABCDE"}
    crashed = "crashes: its process on the Ray cluster was killed, perhaps because memory ran out; try fewer --jobs"
    assert results(["a", "crashes", "b"], 1) == {"A", "B", crashed}


def test_jobs_limit_the_tasks_at_a_time(cluster):
    spans = sorted(map_on_ray(_times, "abcd", jobs=1, address=cluster.address, failed=_failed))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_nodes_that_cannot_run_the_work_end_it_with_one_line(cluster):
    for work, message in (
        (_refuse, "^this machine has no store$"),
        (_work, "^a node .*OSError: no such disk; install .* on every node"),
    ):
        with pytest.raises(AdvisorError, match=message):
            list(map_on_ray(work, ["raises"], jobs=1, address=cluster.address, failed=_failed))
    with pytest.raises(AdvisorError, match=r"no Ray cluster responds at 127\.0\.0\.1:1: "):
        list(map_on_ray(_work, ["a"], jobs=1, address="127.0.0.1:1", failed=_failed))


def test_tasks_of_a_failed_node_run_again_on_another(tmp_path):
    with ray_cluster({"num_cpus": 0}) as cluster:
        failing = cluster.add_node(num_cpus=1)
        results = []
        iteration = map_on_ray(_wait_for_go, [tmp_path], jobs=None, address=cluster.address, failed=_failed)
        thread = Thread(target=lambda: results.extend(iteration))
        thread.start()
        while not list(tmp_path.glob("begun-*")):
            time.sleep(0.05)
        cluster.remove_node(failing, allow_graceful=False)
        (tmp_path / "go").touch()
        cluster.add_node(num_cpus=1)
        thread.join(60)
        assert results == [tmp_path.name]
        assert len(list(tmp_path.glob("begun-*"))) == 2
