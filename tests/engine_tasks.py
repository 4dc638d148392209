"""Trainings for the tests of execution engines."""

import json
import sys
import time

import psutil
from launches import wait_until

from advisor.execution.engines import Task

SCRIPT = """
import json, os, sys, time
kind, file = sys.argv[1:]
gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
print(json.dumps({"gpu": gpu, "secret": os.environ["SECRET"], "file": open(file).read()}), flush=True)
if kind == "fail":
    sys.exit("no data")
until = time.monotonic() + 100
while kind == "hang" and time.monotonic() < until and not os.path.exists("go"):
    time.sleep(0.05)
"""


def task(folder, name, kind="well", **more):
    file = folder / "out" / f"{name}.json"
    words = [sys.executable, str(folder / "train.py"), kind, str(file)]
    return Task(name, words, {"SECRET": "s3cret"}, folder / "out" / f"{name}.log", file, '{"lr": 0.1}', **more)


def exit_of(training, seconds=60.0):
    until = time.monotonic() + seconds
    while (exit := training.poll()) is None:
        assert time.monotonic() < until, "the training never ended"
        time.sleep(0.05)
    return exit


def output(task):
    return json.loads(task.log.read_text().splitlines()[0])


def processes(task):
    return [p for p in psutil.process_iter(["cmdline"]) if str(task.params_file) in (p.info["cmdline"] or [])]


def exercise(engine, folder):
    """Run trainings that succeed, fail, are stopped, and exceed their time limit; return the first one's output."""
    kinds = {"well": "well", "fails": "fail", "stopped": "hang", "slow": "hang"}
    tasks = {n: task(folder, n, kind, timeout_s=1.0 if n == "slow" else None) for n, kind in kinds.items()}
    assert engine.free_capacity() >= len(tasks)
    trainings = dict(zip(tasks, engine.start(list(tasks.values())), strict=True))
    assert exit_of(trainings["well"]).ok
    failed = exit_of(trainings["fails"])
    assert (failed.code, failed.reason) == (1, "exit status 1: no data")
    wait_until(lambda: processes(tasks["stopped"]))
    time.sleep(0.3)  # Ray delivers its log later
    trainings["stopped"].stop()
    stopped = exit_of(trainings["stopped"])
    assert stopped.interrupted
    assert not stopped.lost
    assert exit_of(trainings["slow"]).timed_out
    assert not processes(tasks["slow"])
    printed = output(tasks["well"])
    assert printed["secret"] == "s3cret"
    assert printed["file"] == '{"lr": 0.1}'
    return printed
