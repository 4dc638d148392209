from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import Fork
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import analyze, contract
from advisor_logging.checkpoints import read_checkpoints, read_run_info, write_checkpoint_list
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import OnlyRun, Start, Train


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """Limit the size of files that this process writes, like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Work:
    """A training with three random generators and every kind of state."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)

    def log(self, uri: str, **settings: object) -> TuningLogger:
        known = {"params": {"learning_rate": 0.01}, "objective": "val/error", "experiment": "test", "tracking_uri": uri}
        state = {"scaler": self.scaler, "scheduler": self.scheduler, "checkpoints": 2}
        return TuningLogger(self.model, self.optimizer, **{**known, **state, **settings})  # type: ignore[arg-type]

    def train(self, log: TuningLogger, until: int) -> None:
        while log.steps < until:
            x = torch.randn(8, 4) * random.random() + np.random.rand()
            loss = nn.functional.mse_loss(self.model(x), x[:, :1])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            log.step(loss)

    def weights(self) -> list[torch.Tensor]:
        return [t.clone() for t in self.model.state_dict().values()]


def killed(uri: str, tmp_path: Path, only_run: OnlyRun, *, knows_its_run: bool) -> Run:
    """Return a run of `Work` that was evaluated at steps 10, 20 and 30, killed later, and then delivered."""
    code = f"""
    import os, signal, sys, time
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from test_checkpoints import Work
    work = Work()
    log = work.log({uri!r})
    for step, error in ((10, 0.3), (20, 0.1), (30, 0.2)):
        work.train(log, step)
        while {knows_its_run} and log.run_id is None:
            time.sleep(0.02)
        log.evaluate({{"val/error": error}})
    work.train(log, 35)
    time.sleep(1.0)  # later points may be lost
    os.kill(os.getpid(), signal.SIGKILL)
    """
    training = Fork(["-c", textwrap.dedent(code)], tmp_path, os.environ)
    assert training.wait(120) == -signal.SIGKILL, training.communicate()
    client, deadline = MlflowClient(uri), time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.get_experiment_by_name("test")
        runs = [] if found is None else client.search_runs([found.experiment_id])
        if runs and runs[0].info.status == "KILLED":
            break
        time.sleep(0.1)
    return only_run()


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(uri: str, tmp_path: Path, only_run: OnlyRun) -> None:
    run = killed(uri, tmp_path, only_run, knows_its_run=True)
    run_id = run.info.run_id
    tag = json.loads(run.data.tags[contract.TAG_CHECKPOINTS])  # logged during the run, which was never closed
    assert (tag["chosen"], [c["step"] for c in tag["kept"]]) == (19, [19, 29])

    whole = Work()
    with whole.log(uri, experiment="whole") as log:
        whole.train(log, 50)
    work = Work()
    work.train(log := work.log(uri, experiment="noise", checkpoints=0), 3)  # `resume` discards this state
    log.close()
    with work.log(uri, resume=True) as log:
        assert log.steps == 30
        assert log.best is not None
        assert log.best[:2] == (19, 0.1)
        work.train(log, 40)
        log.evaluate({"val/error": 0.15})
        work.train(log, 50)
    assert all(torch.equal(a, b) for a, b in zip(work.weights(), whole.weights(), strict=True))
    assert work.scheduler.state_dict()["_last_lr"] == whole.scheduler.state_dict()["_last_lr"]
    assert work.scaler.state_dict() == whole.scaler.state_dict()
    assert log.run_id == run_id
    run = only_run()
    tag = json.loads(run.data.tags[contract.TAG_CHECKPOINTS])
    assert [(c["step"], c["value"]) for c in tag["kept"]] == [(19, 0.1), (39, pytest.approx(0.15)), (49, None)]
    assert log.latest == Path(tag["kept"][2]["path"])
    assert log.best is not None
    assert log.best.path == Path(tag["kept"][0]["path"])
    assert torch.load(log.latest, weights_only=True)["steps_made"] == 50

    fresh = Work()
    with fresh.log(uri, experiment="again", resume=True) as log:  # that run has ended: this is a new one
        assert log.steps == 0
    with fresh.log(uri, experiment="again", resume=tag["kept"][0]["path"]) as log:
        assert log.steps == 20
    with pytest.raises(ValueError, match="does not fit this training") as caught:
        Work.log(_another_model(), uri, resume=tag["kept"][0]["path"])
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="nor one of them"):
        Work().log(uri, resume=tmp_path / "nothing")


def _another_model() -> Work:
    work = Work()
    work.model = nn.Sequential(nn.Linear(5, 1))
    return work


def test_killed_before_it_knew_its_run_it_goes_on_in_it(uri: str, tmp_path: Path, only_run: OnlyRun) -> None:
    run = killed(uri, tmp_path, only_run, knows_its_run=False)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    about = read_run_info(folder)
    assert about is not None
    write_checkpoint_list(
        folder, replace(about, run_id=None), *read_checkpoints(folder, "val/error")
    )  # independent of the machine's speed
    work = Work()
    with work.log(uri, resume=True) as log:
        work.train(log, 40)
    assert only_run().info.run_id == run.info.run_id == log.run_id
    assert only_run().info.status == "FINISHED"


def test_continued_by_hand_it_ranks_against_what_was_kept(uri: str, start: Start, train: Train, tmp_path: Path) -> None:
    with start(uri, checkpoints=1) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.1})
    with start(uri, checkpoints=1, run_id=log.run_id, start_step=5) as again:
        train(again, 5)
        again.evaluate({"val/error": 0.2})
    assert again.best == log.best
    assert len(names(tmp_path / "checkpoints")) == 1


def test_the_users_own_save_and_load(uri: str, start: Start, train: Train) -> None:
    loaded: list[Path] = []

    def save(path: Path) -> None:
        path.mkdir()
        torch.save(log._model.state_dict(), path / "model.pt")

    settings = {"checkpoints": 1, "save": save, "load": loaded.append, "resume": True}
    log = start(uri, **settings)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    log.close("stopped")
    assert log.latest is not None
    assert names(log.latest) == {"model.pt"}
    with start(uri, **settings) as again:
        assert again.steps == 5
    assert loaded == [log.latest]
    with pytest.raises(ValueError, match="also pass `load`"):
        start(uri, checkpoints=1, save=save, resume=True)


def test_a_full_disk_stops_no_training(
    uri: str, start: Start, train: Train, only_run: OnlyRun, caplog: pytest.LogCaptureFixture
) -> None:
    with start(uri, checkpoints=2) as log:
        log._model.register_buffer("ballast", torch.zeros(1_000_000))
        train(log, 5)
        log.evaluate({"val/error": 0.5})
        with full_disk(1_000_000):
            for _ in range(3):
                train(log, 5)
                log.evaluate({"val/error": 0.1})
        assert log.latest is not None
        assert names(log.latest.parent) == {"step-000000004.pt", "checkpoints.json"}
        assert torch.load(log.latest, weights_only=True)["value"] == 0.5
        train(log, 5)
        log.evaluate({"val/error": 0.3})
    assert [m for m in caplog.messages if "checkpoint" in m] == caplog.messages
    assert len(caplog.messages) == 1
    tag = json.loads(only_run().data.tags[contract.TAG_CHECKPOINTS])
    assert [c["step"] for c in tag["kept"]] == [24, 4]
    assert log.best is not None
    assert log.best[1:] == (pytest.approx(0.1), None)  # the best was evaluated but not saved


def test_no_checkpoint_of_a_training_that_is_gone(
    uri: str, start: Start, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    log = start(uri, checkpoints=1)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    log.evaluate({"val/error": 0.1}, step=2)  # its weights are gone
    train(log, 5)
    log.close(error=KeyboardInterrupt())  # possibly during a step
    assert log.latest is not None
    assert log.latest.name == "step-000000004.pt"
    log = start(uri, checkpoints=1)
    train(log, 5)
    log.evaluate({"val/error": 0.5})
    train(log, 5, loss=math.nan)
    log.close()
    assert log.latest is not None
    assert log.latest.name == "step-000000004.pt"
    assert len([m for m in caplog.messages if "of step 2: the last one made is 4" in m]) == 1


def test_the_rule_sees_what_was_kept(uri: str, start: Start, train: Train) -> None:
    def run(**settings: object) -> str:
        experiment = str(settings)
        with start(uri, experiment=experiment, **settings) as log:
            for i in range(20):
                train(log, 5)
                x = i / 20
                log.evaluate({"val/error": 1 + 3 * max(0.4 - x, 0) ** 2 + 0.5 * max(x - 0.4, 0) + 1e-3 * (i % 3)})
        report = analyze(experiment, tracking_uri=uri)
        (said,) = [v for v in report.verdicts if v.rule == "ckpt-best-lost"]
        return said.status

    assert run(checkpoints=0) == "fired"
    assert run(checkpoints=2) == "quiet"


def test_misuse_is_said_at_once(uri: str, start: Start, tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], str, dict[str, object]]] = [
        (TypeError, "save must be a function", {"checkpoints": 1, "save": "here"}),
        (ValueError, "checkpoints=3", {"resume": True}),
        (ValueError, "omit start_step", {"checkpoints": 1, "resume": True, "start_step": 3}),
        (ValueError, "your own `save`", {"checkpoints": 1, "save_on_all_ranks": True}),
    ]
    for kind, message, settings in wrong:
        with pytest.raises(kind, match=message) as caught:
            start(uri, **settings)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "spool").exists()
