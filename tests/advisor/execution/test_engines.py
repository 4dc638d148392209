"""Engines start real processes, on this machine, on the nodes of a Ray cluster, as jobs of submitit."""

import json
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from clusters import ray_cluster

from advisor.execution.engines import Task, slurm
from advisor.execution.engines.local import Local
from advisor.execution.engines.slurm import Slurm
from advisor.model.errors import AdvisorError

SCRIPT = """
import json, os, sys, time
kind, file = sys.argv[1:]
gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
print(json.dumps({"gpu": gpu, "told": os.environ["TOLD"], "file": open(file).read()}), flush=True)
if kind == "fail":
    sys.exit("no data")
until = time.monotonic() + 100
while kind == "hang" and time.monotonic() < until and not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    own = tmp_path / "Ünï code"
    own.mkdir()
    monkeypatch.chdir(own)
    (own / "train.py").write_text(SCRIPT)
    return own


def task(folder, name, kind="well", **more):
    file = folder / "out" / f"{name}.json"
    words = [sys.executable, str(folder / "train.py"), kind, str(file)]
    return Task(name, words, {"TOLD": "s3cret"}, folder / "out" / f"{name}.log", file, '{"lr": 0.1}', **more)


def ends(training, seconds=60.0):
    until = time.monotonic() + seconds
    while (ended := training.poll()) is None:
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return ended


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def said(task):
    return json.loads(task.log.read_text().splitlines()[0])


def running(task):
    return [p for p in psutil.process_iter(["cmdline"]) if str(task.params_file) in (p.info["cmdline"] or [])]


def exercise(engine, folder):
    """What every engine does: a training that ends well, one that fails, one that is stopped, one that takes too long."""
    kinds = {"well": "well", "fails": "fail", "stopped": "hang", "slow": "hang"}
    tasks = {n: task(folder, n, kind, timeout_s=1.0 if n == "slow" else None) for n, kind in kinds.items()}
    assert engine.room() >= len(tasks)
    trainings = dict(zip(tasks, engine.start(list(tasks.values())), strict=True))
    assert ends(trainings["well"]).ok
    failed = ends(trainings["fails"])
    assert (failed.code, failed.reason) == (1, "exit status 1: no data")
    until(lambda: running(tasks["stopped"]))
    time.sleep(0.3)  # Ray has its log later
    trainings["stopped"].stop()
    stopped = ends(trainings["stopped"])
    assert stopped.interrupted
    assert not stopped.lost
    assert ends(trainings["slow"]).timed_out
    assert not running(tasks["slow"])
    told = said(tasks["well"])
    assert told["told"] == "s3cret"
    assert told["file"] == '{"lr": 0.1}'
    return told


def test_this_machine(folder):
    engine = Local([{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)])
    assert exercise(engine, folder)["gpu"] == "0"
    assert engine.room() == 4
    with pytest.raises(AdvisorError, match="cannot run 'no-such-program'"):
        engine.start([Task("x", ["no-such-program"], {}, folder / "x.log", folder / "x.json", "{}")])
    assert engine.room() == 4


def test_a_training_that_will_not_stop_is_killed_when_asked_again(folder):
    (folder / "train.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(99)"
    )
    stubborn = task(folder, "stubborn")
    (training,) = Local([{}]).start([stubborn])
    until(stubborn.log.read_text)
    training.stop()
    time.sleep(0.3)
    assert training.poll() is None
    training.stop()
    assert ends(training, 5.0).interrupted


def test_slurm_jobs_through_submitit(folder):
    engine = Slurm(folder / "slurm", gpus_per_trial=0, parallel=None, timeout_s=60.0, options={}, cluster="local")
    exercise(engine, folder)
    assert (folder / "slurm").stat().st_mode & 0o077 == 0  # what jobs are given may hold a password


def slurm_answers():
    return bool(shutil.which("sinfo")) and subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not slurm_answers(), reason="no SLURM answers here")
def test_slurm_itself(folder):
    engine = Slurm(folder / "slurm", gpus_per_trial=0, parallel=4, timeout_s=60.0, options={})
    exercise(engine, folder)
    waiting, ran = task(folder, "waiting", "hang"), task(folder, "ran", "hang")
    (first,) = engine.start([ran])
    until(lambda: running(ran))
    assert slurm.SlurmQueue().contains(first.note())
    blocked = Slurm(folder / "slurm", gpus_per_trial=0, parallel=None, timeout_s=60.0, options={"begin": "now+1hour"})
    (second,) = blocked.start([waiting])
    assert slurm.SlurmQueue().contains(second.note())
    second.stop()
    assert ends(second).interrupted
    subprocess.run(["scancel", first.note()["slurm"]], check=True)  # by somebody else
    assert ends(first).lost
    until(lambda: not slurm.SlurmQueue().contains(first.note()))


def test_slurm_says_what_it_needs(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(AdvisorError, match="sbatch is not on this machine"):
        Slurm(folder, gpus_per_trial=0, parallel=None, timeout_s=60.0, options={})
    with pytest.raises(AdvisorError, match="--slurm nodes=two: 'two' is not a number"):
        Slurm(folder, gpus_per_trial=0, parallel=None, timeout_s=60.0, options={"nodes": "two"}, cluster="local")
    with pytest.raises(AdvisorError, match="pass --timeout MINUTES"):
        Slurm(folder, gpus_per_trial=0, parallel=None, timeout_s=None, options={}, cluster="local")


@pytest.mark.parametrize(("module", "extra"), [("ray", "ray"), ("submitit", "slurm")])
def test_without_the_extra_one_line_names_it(module, extra, folder):
    code = f"import sys; sys.modules[{module!r}] = None\nfrom advisor.cli import main\nmain()"
    (folder / "s.yaml").write_text("study: s\nobjective: {metric: m, direction: minimize}\ntrials: 1\n")
    words = [sys.executable, "-c", code, "run", "s.yaml", "--on", extra, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f'pip install "tuning-advisor[{extra}]"' in done.stderr


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with a GPU to hand out, as Ray counts them."""
    with ray_cluster({"num_cpus": 2, "num_gpus": 0}, {"num_cpus": 2, "num_gpus": 2}) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes(folder, cluster):
    from advisor.execution.engines.ray import Ray

    engine = Ray(cluster.address, gpus_per_trial=0, cpus_per_trial=1.0, parallel=None)
    try:
        exercise(engine, folder)
        placed = Ray(cluster.address, gpus_per_trial=None, cpus_per_trial=0.5, parallel=None)
        assert placed.room() == 3  # two GPUs, and one ahead
        tasks = [task(folder, f"gpu-{i}", "hang") for i in range(2)]
        trainings = placed.start(tasks)
        until(lambda: all(running(t) for t in tasks))
        assert placed.room() == 1
        (folder / "go").touch()
        assert all(ends(t).ok for t in trainings)
        assert sorted(said(t)["gpu"] for t in tasks) == ["0", "1"]
    finally:
        engine.close()


@pytest.mark.slow
def test_a_ray_node_that_dies_loses_its_training_and_says_so(folder, cluster):
    from advisor.execution.engines.ray import Ray

    doomed = cluster.add_node(num_cpus=1, num_gpus=1, resources={"doomed": 1})
    engine = Ray(cluster.address, gpus_per_trial=1, cpus_per_trial=1.0, parallel=None)
    try:
        tasks = [task(folder, f"on-{i}", "hang") for i in range(3)]
        trainings = engine.start(tasks)
        until(lambda: all(running(t) for t in tasks))
        cluster.remove_node(doomed, allow_graceful=False)
        until(lambda: any(t.poll() for t in trainings))
        (lost,) = [t for t in trainings if t.poll()]
        assert lost.poll().lost
        until(lambda: not running(tasks[trainings.index(lost)]))  # it does not go on without its actor
        (folder / "go").touch()
        assert [ends(t).ok for t in trainings if t is not lost] == [True, True]
    finally:
        engine.close()
