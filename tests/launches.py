"""A small study, a training that waits for a file, and a launch in a thread, for tests."""

from __future__ import annotations

import sys
import threading
import time

from mlflow.tracking import MlflowClient

from advisor.execution import LaunchPlan, Ledger, jobs, launch
from advisor.execution.engines.local import LocalEngine
from advisor.execution.queue import AdaptiveQueue, ListedQueue
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking.stores.location import parse_tracking_uri

SPEC = StudySpec(
    study="l'été",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.001, high=1.0, scale="log")},
    trials=2,
)


CONDITIONAL = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={
        "lr": Parameter(low=0.001, high=1, scale="log"),
        "nesterov": Parameter(type="bool"),
        "momentum": Parameter(low=0, high=0.9, when={"nesterov": True}),
    },
    trials=20,
)
"""A study with a conditional hyperparameter."""
TRAINING = """
import os, sys, time
from pathlib import Path
from quick import log
here = Path.cwd()
log(0.5, step=1)
with (here / "begun").open("a") as file:
    file.write(os.environ["ADVISOR_TRIAL"] + "\\n")
until = time.monotonic() + 300
while time.monotonic() < until and not (here / "go").exists():
    time.sleep(0.05)
"""


def wait_until(condition, seconds=120.0):
    """Wait until the condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.05)


def make_plan(project, spec=SPEC, uri="sqlite:///mlflow.db", engine=None, **more):
    location = parse_tracking_uri(uri)
    adaptive = spec.sampler.kind == "adaptive"
    queue = AdaptiveQueue(spec, spec.trials, 0, []) if adaptive else ListedQueue(jobs(spec))
    return LaunchPlan(
        spec=spec,
        queue=queue,
        command=[sys.executable, str(project / "train.py")],
        location=location,
        experiment="e",
        folder=project / "out put",
        engine=engine or LocalEngine([{}] * 2),
        **more,
    )


class Background:
    """A launch in a thread."""

    def __init__(self, plan, continued=()):
        self.news, self.summary = [], None
        self._plan, self._continued = plan, continued
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        ledger = Ledger(self._plan.location, "e", self._plan.spec)
        for trial in self._continued:
            ledger.continue_trial(trial)
        self.summary = launch(self._plan, ledger, lambda summary, news: self.news.append(news) if news else None)

    def reported(self, words):
        return any(words in line for line in self.news)

    def end(self, seconds=120.0):
        self._thread.join(seconds)
        assert self.summary is not None
        return {key: outcome.status for key, outcome in self.summary.outcomes.items()}


def client_of(project):
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def claim(ledger, job):
    """Begin a job and return the id of its run, or the job's state."""
    ((_, run_id),) = ledger.begin([job])
    return run_id


def begun(project):
    file = project / "begun"
    return sorted(file.read_text().split()) if file.exists() else []
