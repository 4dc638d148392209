"""Launches while the store goes away, runs are deleted, and machines are lost."""

import json
import os
import signal
import threading

import psutil
import pytest
from clusters import ray_cluster
from launches import SPEC, Background, begun, client_of, make_plan, wait_until

from advisor import contract
from advisor.execution import Ledger, launch
from advisor.execution.engines.slurm import SlurmEngine
from advisor.model.spec import Sampler

pytestmark = pytest.mark.xdist_group("tracking server")  # they share servers


def test_no_outcome_is_lost_while_the_server_is_unreachable(training, proxy):
    running = Background(make_plan(training, uri=f"http://127.0.0.1:{proxy.port}"))
    wait_until(lambda: begun(training) == ["0", "1"])
    proxy.cut()
    (training / "go").touch()
    wait_until(lambda: running.reported("The tracking store does not answer; runs continue"))
    wait_until(lambda: list((training / "out put").glob("*.ended.json")))
    proxy.restored()
    assert running.end() == {(0, 0): "complete", (1, 0): "complete"}
    assert running.reported("The tracking store answers again.")
    assert sorted(f.suffix for f in (training / "out put").iterdir()) == [".json", ".json", ".log", ".log"]
    assert begun(training) == ["0", "1"]


def test_a_deleted_run_does_not_stop_the_others(training):
    running = Background(make_plan(training))
    wait_until(lambda: begun(training) == ["0", "1"])
    client = client_of(training)
    (gone,) = client.search_runs([client.get_experiment_by_name("e").experiment_id], "tags.`advisor.trial` = '0'")
    client.delete_run(gone.info.run_id)
    (training / "go").touch()
    assert running.end() == {(1, 0): "complete"}
    assert running.reported("trial-0 cannot be recorded")
    assert Background(make_plan(training)).end() == {(0, 0): "complete", (1, 0): "complete"}


def test_a_training_may_read_its_seed_from_its_environment(training):
    (training / "go").touch()
    spec = SPEC.model_copy(update={"trials": 1, "seeds": 2})
    assert Background(make_plan(training, spec, append_hyperparameters=False)).end() == {(0, 0): "complete", (0, 1): "complete"}


def test_sigterm_stops_cleanly(training):
    def terminate():
        wait_until(lambda: begun(training) == ["0", "1"])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    plan = make_plan(training)
    ledger = Ledger(plan.location, "e", SPEC)
    with pytest.raises(KeyboardInterrupt):
        launch(plan, ledger, lambda *_: None)
    assert [entry.state for entry in ledger.entries()] == ["open", "open"]


@pytest.mark.parametrize("kind", ["adaptive", "halton"])
def test_the_last_trial_is_begun_again_if_its_machine_is_lost(training, kind):
    spec = SPEC.model_copy(update={"trials": 1, "sampler": Sampler(kind=kind)})
    out, options = training / "slurm", {"cluster": "local", "max_submitted": 2, "options": {}}
    engine = SlurmEngine(out, gpus_per_trial=0, parallel=1, timeout_s=300.0, **options)
    running = Background(make_plan(training, spec, engine=engine))
    wait_until(lambda: begun(training) == ["0"])
    (run,) = client_of(training).search_runs(["1"])
    job = psutil.Process(json.loads(run.data.tags[contract.TAG_LAUNCH])["training"])
    for process in (*job.children(recursive=True), job):
        process.kill()
    (training / "go").touch()
    assert running.end() == {(0, 0): "complete"}
    assert begun(training) == ["0", "0"]


@pytest.mark.slow
def test_a_trial_whose_ray_node_fails_is_begun_again(training):
    from advisor.execution.engines.ray import RayEngine

    with ray_cluster({"num_cpus": 1}) as cluster:
        doomed = cluster.add_node(num_cpus=1)
        engine = RayEngine(cluster.address, gpus_per_trial=0, cpus_per_trial=1.0, parallel=2)
        running = Background(make_plan(training, engine=engine))
        wait_until(lambda: begun(training) == ["0", "1"])
        cluster.remove_node(doomed, allow_graceful=False)
        wait_until(lambda: running.reported("the machine failed or was removed; we begin the job again"))
        (training / "go").touch()
        assert running.end() == {(0, 0): "complete", (1, 0): "complete"}
        assert len(begun(training)) == 3
