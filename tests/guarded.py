"""A study whose trials are whole, hopeless or not finite, for tests of the guard."""

from __future__ import annotations

import time

from launches import make_plan
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.execution.guarding import GuardedStudy
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking.stores.location import parse_tracking_uri

WHOLE, EVALUATIONS = 5, 12
"""Number of trials that run to their end, and of evaluations of a training."""
SPEC = StudySpec(
    study="guarded",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.001, high=1.0, scale="log")},
    trials=WHOLE + 2,
    max_train_steps=EVALUATIONS,
)
"""Trial 5 cannot become the best, and trial 6 is not finite. Both go on until the file `go` exists."""
TRAINING = """
import os, signal, sys, time
from pathlib import Path
from quick import log
here, trial = Path.cwd(), int(os.environ["ADVISOR_TRIAL"])
with (here / "begun").open("a") as file:
    file.write(f"{trial}\\n")
if (here / "stubborn").exists():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if trial < 5:
    for step in range(1, 13):
        log(1 / step + 0.01 * trial, step)
    log(end="FINISHED")
    sys.exit()
for step in range(1, 9):
    log(3.0 if trial == 5 else float("nan"), step)
until = time.monotonic() + 300
while time.monotonic() < until and not (here / "go").exists():
    time.sleep(0.05)
for step in range(9, 13):
    log(3.0, step)
log(end="FINISHED")
"""


class Notices:
    """Stands for the notifier of a launch, and keeps the events of its notices."""

    def __init__(self):
        self.events = set()

    def send(self, notice):
        self.events.add(notice.event)


def guarded_plan(project, spec=SPEC, uri="sqlite:///mlflow.db", engine=None, *, stop_doomed=True, **more):
    guard = GuardedStudy("e", parse_tracking_uri(uri), spec, interval_s=0.1)
    return make_plan(project, spec, uri, engine, guard=guard, stop_doomed=stop_doomed, **more)


def log_study(uri, *, running=(3.0,) * 8, whole=WHOLE, clock_s=0.0, **tags):
    """Log complete trials and a running trial with these values. Return the id of the running trial.

    whole: number of complete trials. clock_s: offset of the running trial's clock.
    """
    client = MlflowClient(uri)
    experiment = client.create_experiment("e")
    curves = [[1 / step + 0.01 * i for step in range(1, EVALUATIONS + 1)] for i in range(whole)]
    for i, curve in enumerate([*curves, running]):
        last = i == whole
        common = {contract.TAG_OBJECTIVE: "val/loss", contract.TAG_DIRECTION: "minimize"}
        own = {contract.TAG_MAX_TRAIN_STEPS: str(EVALUATIONS), **common, **(tags if last else {})}
        run = client.create_run(experiment, tags=own, run_name=f"trial-{i}")
        client.log_param(run.info.run_id, "lr", 0.1 / (1 + i))
        now = int(1000 * (time.time() + (clock_s if last else 0.0)))
        points = [Metric("val/loss", value, now + step, step) for step, value in enumerate(curve, 1)]
        client.log_batch(run.info.run_id, points)
        if not last:
            client.set_terminated(run.info.run_id)
    return run.info.run_id
