"""Exits of processes in words."""

import sys
import time

import psutil
import pytest

from advisor.execution.engines import process as module
from advisor.execution.engines.process import Exit, last_line


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Exit(1, last_line="torch.OutOfMemoryError: CUDA out of memory."), "out of memory: torch.OutOfMemoryError"),
        (Exit(-9), "killed, perhaps because memory ran out"),
        (Exit(-11), "ended by signal SIGSEGV"),
        (Exit(-40), "ended by signal 40"),
        (Exit(2, last_line="usage"), "exit status 2: usage"),
        (Exit(-15, timed_out=True), "timeout"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_reasons(ended, reason):
    assert not ended.ok
    assert ended.reason.startswith(reason)


LEFTOVER = """
import os, signal, subprocess, sys
child = "import signal, time; {ignore}print('ready', flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize("ignores", [True, False])
def test_no_process_of_a_training_survives_it(ignores, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LEFTOVER_GRACE_S", 1.0 if ignores else 600.0)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if ignores else ""
    log = tmp_path / "log"
    training = module.TrainingProcess([sys.executable, "-c", LEFTOVER.replace("{ignore}", ignore)], {}, log)
    deadline = time.monotonic() + 60
    while (ended := training.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended == Exit(0, last_line=log.read_text().strip())
    child = int(ended.last_line)
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:  # no init process collects orphans here
            break
        time.sleep(0.05)
    else:
        assert not psutil.pid_exists(child)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nlast\n\n", "last"),
        (
            "mlflow.exceptions.MlflowException: Cannot start run with ID 1 because active experiment ID does not match environment "
            "run ID. Make sure\nor use arguments",
            "mlflow.set_experiment; remove the call",
        ),
        (
            "Changing param values is not allowed. Param with key='lr'\ntracking store.",
            "pass the value in the command: --lr {lr}",
        ),
    ],
)
def test_errors_that_the_launcher_makes_likely_say_what_to_do(tmp_path, text, said):
    (tmp_path / "log").write_text(text)
    assert said in last_line(tmp_path / "log")
