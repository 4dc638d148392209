"""`advisor tune` on a real training and a real store: a wrong space, interruptions, and decisions that are kept."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from commands import ADVISOR, contents, status_of
from launches import wait_until

from advisor.model.spec_yaml import load
from advisor.tracking.stores.reading import read_experiment

STUDY = """
study: small
objective: {metric: val/loss, direction: minimize}
parameters:
  lr: {low: 1.0e-5, high: 1.0e-3, scale: log, why: what the last project used}
  momentum: {low: 0.0, high: 0.9}
max_train_steps: 10
"""
"""The best learning rate is 0.1, a hundred times the highest."""
TRAINING = """
import math, os, random, sys, time
from pathlib import Path
from quick import log

lr, momentum, seed = map(float, sys.argv[1:4])
study, trial = os.environ["ADVISOR_STUDY"], os.environ["ADVISOR_TRIAL"]
with open("begun", "a") as file:
    file.write(f"{study}/{trial}/{int(seed)}\\n")
until = time.monotonic() + 300
while Path("hang").exists() and Path("hang").read_text() == f"{study}/{trial}" and time.monotonic() < until:
    time.sleep(0.05)
loss = 1 + (math.log10(lr) + 1) ** 2 + (momentum - 0.5) ** 2 + random.Random(seed).gauss(0, 0.02)
log(loss + 1, 5)
log(loss, 10)
log(end="FINISHED")
with open("ended", "a") as file:
    file.write(f"{study}/{trial}\\n")
"""
TRIALS = 24


@pytest.fixture
def folder(project, logs):
    (project / "train.py").write_text(TRAINING)
    (project / "study.yaml").write_text(STUDY)
    return project


def words(*options: str) -> list[str]:
    command = [sys.executable, "train.py", "{lr}", "{momentum}", "{seed}"]
    return ["tune", "study.yaml", "--tracking-uri", "sqlite:///mlflow.db", "--trials", str(TRIALS), *options, "--", *command]


def start(folder: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*ADVISOR, *words(*options)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split() if path.exists() else []


def test_a_wrong_space_is_widened_and_the_best_setting_repeated(folder, capfd):
    assert status_of(*words()) == 0
    out, err = capfd.readouterr()
    print(out, err)
    assert 0
