"""The options of `advisor run` for the guard, in whole launches."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import commands
import pytest
from guarded import TRAINING
from mlflow.tracking import MlflowClient

from advisor.execution import guarding
from advisor.execution.engines import process

STUDY = """
study: e
objective: {metric: val/loss, direction: minimize}
parameters: {lr: {low: 0.001, high: 1.0, scale: log}}
trials: 6
max_train_steps: 12
"""


@pytest.fixture
def run(project: Path, logs: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> commands.Advisor:
    """Run `advisor run` on a study whose trial 5 is hopeless, with a guard that looks often."""
    (project / "train.py").write_text(TRAINING)
    (project / "study.yaml").write_text(STUDY)
    monkeypatch.setattr(guarding.GuardedStudy.__init__, "__defaults__", (None, False, None, None, 0.1))
    monkeypatch.setattr(process, "STOP_GRACE_S", 5.0)

    def call(*options: object) -> tuple[int, str, str]:
        capfd.readouterr()
        words = ["run", "study.yaml", "--tracking-uri", "sqlite:///mlflow.db", *options, "--no-args", "--"]
        return commands.status_of(*words, sys.executable, "train.py"), *capfd.readouterr()

    return call


def test_a_launch_stops_continues_and_notifies(project: Path, run: commands.Advisor) -> None:
    notify = f"tee -a '{project}/notices'"
    status, out, err = run("--stop-doomed", "--notify", notify)
    assert status == 0
    assert "6 of 6 trainings have ended: best val/loss 0.08333 (trial-0), 1 pruned." in out
    assert re.search(r"trial-5 was stopped at step [5-8]: trial-5 cannot become the best", err)
    messages = [json.loads(line) for line in (project / "notices").read_text().splitlines()]
    notices = {notice["event"]: notice for message in messages for notice in message.get("bundled", [message])}
    assert notices.keys() - {"stuck"} == {"stopped", "ended"}
    assert (notices["stopped"]["study"], notices["stopped"]["trial"]) == ("e", "trial-5")
    assert 5 <= notices["stopped"]["step"] <= 8
    assert "6 of 6 trainings have ended" in notices["ended"]["message"]
    (project / "go").touch()
    status, out, err = run("--stop-doomed", "--continue", "5")
    assert status == 0
    assert "trial-5 begins at step 0 in a new run" in err
    assert "6 of 6 trainings have ended: best val/loss 0.08333 (trial-0)." in out
    status, out, err = run("--continue", "trial-4")
    assert (status, out) == (2, "")
    assert err == (
        "advisor: the guard did not stop trial 'trial-4', so there is nothing to continue; it stopped no trial of this study\n"
    )


NOT_FINITE = """
log(float("nan"), 1)
while not (here / "judged").exists():
    time.sleep(0.05)
log(float("nan"), 2)
time.sleep(300)
"""


def test_a_trial_that_is_not_finite_is_one_message_even_if_it_is_the_first(
    project: Path, run: commands.Advisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _ = TRAINING.split("if trial < 5:")
    (project / "train.py").write_text(head + NOT_FINITE)
    latest = guarding.StudyGuard.latest

    def observed(guard: guarding.StudyGuard) -> guarding.Reading | None:
        reading = latest(guard)
        if reading is not None and any(v.state == "not_finite" for v in reading.running):
            (project / "judged").touch()  # the launch has a verdict that stops nothing
        return reading

    monkeypatch.setattr(guarding.StudyGuard, "latest", observed)
    status, _, err = run("--trials", 1, "--stop-doomed", "--notify", f"tee -a '{project}/notices'")
    assert status == 0
    assert "trial-0 was stopped at step 2" in err
    messages = [json.loads(line) for line in (project / "notices").read_text().splitlines()]
    assert [n["event"] for m in messages for n in m.get("bundled", [m])] == ["stopped", "ended"]


RESUMING = """
import json
import torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = {"objective": "val/loss", "direction": "minimize", "max_train_steps": 12, "seed": int(os.environ["ADVISOR_SEED"])}
params = json.loads(os.environ["ADVISOR_PARAMS"])
with TuningLogger(model, optimizer, **options, params=params, checkpoints=1, resume=True) as log:
    with (here / "from").open("a") as file:
        file.write(f"{log.steps}\\n")
    for step in range(log.steps, 12):
        until = time.monotonic() + 300
        while step == 8 and time.monotonic() < until and not (here / "go").exists():
            time.sleep(0.05)
        loss = model(torch.ones(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss)
        log.evaluate({"val/loss": 3.0})
"""


@pytest.mark.slow
def test_a_training_with_checkpoints_resumes_in_its_run(project: Path, run: commands.Advisor) -> None:
    """The launch runs in the background of a script, where SIGINT is ignored, and its trainings still stop cleanly."""
    head, _ = TRAINING.split("for step in range(1, 9):")
    (project / "train.py").write_text(head + RESUMING)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status, out, err = run("--stop-doomed")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, "1 pruned" in out) == (0, True), err
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    (stopped,) = client.search_runs(["1"], "tags.`advisor.trial` = '5'")
    (project / "go").touch()
    status, out, err = run("--stop-doomed", "--continue", "trial-5")
    assert (status, "pruned" in out) == (0, False), err
    assert "trial-5 continues in the same run from its last checkpoint. The guard does not stop it again." in err
    (continued,) = client.search_runs(["1"], "tags.`advisor.trial` = '5'")
    assert continued.info.run_id == stopped.info.run_id
    assert (project / "from").read_text().split() == ["0", "8"]
    assert [p.step for p in client.get_metric_history(continued.info.run_id, "val/loss")] == list(range(12))
    assert continued.data.tags["advisor.status"] == "complete"


@pytest.mark.parametrize("command", ["", "no-such-program-here", "tee 'x"])
def test_a_command_to_notify_that_cannot_run_is_refused_before_the_launch(
    project: Path, run: commands.Advisor, command: str
) -> None:
    status, out, err = run("--notify", command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--notify" in err
    assert not (project / "begun").exists()
