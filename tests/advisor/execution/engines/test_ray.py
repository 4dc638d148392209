"""Trainings on the nodes of a Ray cluster."""

import pytest
from clusters import ray_cluster
from engine_tasks import exercise, exit_of, output, processes, task
from launches import wait_until

from advisor.execution.engines.ray import RayEngine


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with a GPU to hand out, as Ray counts them."""
    with ray_cluster({"num_cpus": 2, "num_gpus": 0}, {"num_cpus": 2, "num_gpus": 2}) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes(folder, cluster):
    engine = RayEngine(cluster.address, gpus_per_trial=0, cpus_per_trial=1.0, parallel=None)
    try:
        exercise(engine, folder)
        placed = RayEngine(cluster.address, gpus_per_trial=None, cpus_per_trial=0.5, parallel=None)
        assert placed.free_capacity() == 3  # two GPUs, and one ahead
        tasks = [task(folder, f"gpu-{i}", "hang") for i in range(2)]
        trainings = placed.start(tasks)
        wait_until(lambda: all(processes(t) for t in tasks))
        assert placed.free_capacity() == 1
        (folder / "go").touch()
        assert all(exit_of(t).ok for t in trainings)
        assert sorted(output(t)["gpu"] for t in tasks) == ["0", "1"]
    finally:
        engine.close()


@pytest.mark.slow
def test_the_training_of_a_failed_ray_node_is_lost(folder, cluster):
    doomed = cluster.add_node(num_cpus=1, num_gpus=1, resources={"doomed": 1})
    engine = RayEngine(cluster.address, gpus_per_trial=1, cpus_per_trial=1.0, parallel=None)
    try:
        tasks = [task(folder, f"on-{i}", "hang") for i in range(3)]
        trainings = engine.start(tasks)
        wait_until(lambda: all(processes(t) for t in tasks))
        cluster.remove_node(doomed, allow_graceful=False)
        wait_until(lambda: any(t.poll() for t in trainings))
        (lost,) = [t for t in trainings if t.poll()]
        assert lost.poll().lost
        wait_until(lambda: not processes(tasks[trainings.index(lost)]))  # it ends with its actor
        (folder / "go").touch()
        assert [exit_of(t).ok for t in trainings if t is not lost] == [True, True]
    finally:
        engine.close()
