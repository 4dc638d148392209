"""Trainings on this machine."""

import time

import pytest
from engine_tasks import exercise, exit_of, task
from launches import wait_until

from advisor.execution.engines import Task
from advisor.execution.engines.local import LocalEngine
from advisor.model.errors import AdvisorError


def test_this_machine(folder):
    engine = LocalEngine([{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)])
    assert exercise(engine, folder)["gpu"] == "0"
    assert engine.free_capacity() == 4
    with pytest.raises(AdvisorError, match="cannot run 'no-such-program'"):
        engine.start([Task("x", ["no-such-program"], {}, folder / "x.log", folder / "x.json", "{}")])
    assert engine.free_capacity() == 4


def test_a_training_that_will_not_stop_is_killed_when_asked_again(folder):
    (folder / "train.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(99)"
    )
    stubborn = task(folder, "stubborn")
    (training,) = LocalEngine([{}]).start([stubborn])
    wait_until(stubborn.log.read_text)
    training.stop()
    time.sleep(0.3)
    assert training.poll() is None
    training.stop()
    assert exit_of(training, 5.0).interrupted
