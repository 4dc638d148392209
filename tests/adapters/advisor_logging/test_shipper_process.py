"""A shipper serves the next run of its trainer if no setting has changed, and exits with its trainer."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import Fork
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor_logging import shipper_process
from advisor_pytorch import TuningLogger
from tests.adapters.fixture_types import Start, Train

TRAINER = """
import os, sys, time, torch
from advisor_logging import shipper_process
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with TuningLogger(model, optimizer, params={}, objective="val/error", experiment="test", tracking_uri=sys.argv[1]):
    optimizer.step()
(idle,) = shipper_process._idle_shippers
child = os.fork()  # holds a copy of the pipe to the shipper, and keeps running
if child == 0:
    assert shipper_process._idle_shippers == []
    time.sleep(600)
print(idle._process.pid, child, flush=True)
time.sleep(600)
"""


ONE_RUN = """
import sys
sys.path[:0] = sys.argv[2:]  # takes precedence over the installed packages
import torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with TuningLogger(
    model, optimizer, params={}, objective="val/error", experiment="test", tracking_uri=sys.argv[1], close_timeout_s=300.0
) as log:
    optimizer.step()
    log.evaluate({"val/error": 0.5})
"""
ROOT = Path(__file__).parents[3]


def pid(log: TuningLogger) -> int:
    assert log._recorder is not None
    assert log._recorder._shipper is not None
    return log._recorder._shipper._process.pid


def runs(uri: str, experiment: str = "test") -> list[Run]:
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id], order_by=["start_time ASC"]))


def check_whole(uri: str, run: Run, steps: int) -> None:
    client = MlflowClient(uri)
    points = client.get_metric_history(run.info.run_id, contract.TRAIN_LOSS)
    assert [p.step for p in points] == list(range(steps))
    assert run.info.status == "FINISHED"
    assert run.data.tags[contract.TAG_STATUS] == "complete"
    assert [a.path for a in client.list_artifacts(run.info.run_id, "reproduce")] != []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def make_run(start: Start, train: Train, uri: str | None, steps: int = 5, **settings: object) -> TuningLogger:
    with start(uri, max_train_steps=steps, **settings) as log:
        train(log, steps)
        log.evaluate({"val/error": 0.5})
    return log


def test_one_process_delivers_runs_in_turn_and_another_those_at_the_same_time(
    uri: str, tmp_path: Path, start: Start, train: Train
) -> None:
    first = make_run(start, train, uri, steps=400)
    with sqlite3.connect(tmp_path / "mlflow.db", timeout=0.0) as database:
        database.execute("BEGIN EXCLUSIVE")  # an idle shipper holds no lock
    with start(uri, max_train_steps=300) as second:
        train(second, 300)
        second.evaluate({"val/error": 0.5})
        beside = make_run(start, train, uri, steps=200)
    assert pid(first) == pid(second) != pid(beside)
    assert sorted(one._process.pid for one in shipper_process._idle_shippers) == sorted([pid(first), pid(beside)])
    for run, steps in zip(runs(uri), (400, 300, 200), strict=True):
        check_whole(uri, run, steps)
    assert list((tmp_path / "spool").iterdir()) == []


def test_one_process_delivers_the_trials_of_a_loop_though_each_has_a_run_of_its_own(
    uri: str, monkeypatch: pytest.MonkeyPatch, start: Start, train: Train
) -> None:
    client = MlflowClient(uri)
    experiment = client.create_experiment("test")
    used = set()
    for number, steps in enumerate((30, 20)):
        monkeypatch.setenv("MLFLOW_RUN_ID", client.create_run(experiment).info.run_id)
        monkeypatch.setenv("ADVISOR_TRIAL", str(number))
        used.add(pid(make_run(start, train, uri, steps=steps)))
    assert len(used) == 1
    for run, steps in zip(runs(uri), (30, 20), strict=True):
        check_whole(uri, run, steps)


def test_a_shipper_that_died_is_replaced(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    first = make_run(start, train, uri)
    os.kill(pid(first), signal.SIGKILL)
    os.waitid(os.P_PID, pid(first), os.WEXITED | os.WNOWAIT)
    with start(uri, max_train_steps=100) as second:
        died = pid(second)
        assert died != pid(first)
        train(second, 100)
        second.evaluate({"val/error": 0.5})
        os.kill(died, signal.SIGKILL)
    assert pid(second) != died
    for run, steps in zip(runs(uri), (5, 100), strict=True):
        check_whole(uri, run, steps)
    assert list((tmp_path / "spool").iterdir()) == []
    assert not any(Path(f"/proc/{one}").exists() for one in (pid(first), died)), "a zombie is left"
    assert caplog.messages == []


def test_what_changes_between_runs_is_honoured(
    uri: str, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, start: Start, train: Train
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    shutil.copy(empty_store, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    first = make_run(start, train, None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "named")
    second = make_run(start, train, None, experiment=None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    third = make_run(start, train, None, experiment=None)
    assert [run.info.run_id for run in runs(uri)] == [first.run_id]
    assert [run.info.run_id for run in runs(uri, "named")] == [second.run_id]
    assert [run.info.run_id for run in runs(other, "named")] == [third.run_id]
    assert pid(first) == pid(second)
    assert ends(pid(second), 60), "one that does not fit any more is let go"
    (idle,) = shipper_process._idle_shippers
    assert idle.can_serve(shipper_process.ShipperSettings.from_this_process(other))
    shutil.copy(empty_store, tmp_path / "new.db")
    (tmp_path / "new.db").rename(tmp_path / "other.db")
    assert not idle.can_serve(shipper_process.ShipperSettings.from_this_process(other))


def test_an_idle_shipper_ends_with_its_trainer_and_never_serves_a_fork(uri: str, tmp_path: Path) -> None:
    trainer = Fork(["-c", TRAINER, uri], tmp_path, os.environ)
    while not trainer.output:
        assert trainer.poll() is None
        time.sleep(0.05)
    shipper, child = map(int, trainer.output.split())
    try:
        assert is_running(shipper)
        assert is_running(child)
        trainer.kill()
        assert ends(shipper, 60)
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        trainer.kill()
    assert list((tmp_path / "spool").iterdir()) == []
    assert len(runs(uri)) == 1


def run_script(folder: Path, *arguments: object, options: tuple[str, ...] = ()) -> str:
    """Run a training script in `folder` and return its standard error."""
    (folder / "one_run.py").write_text(ONE_RUN)
    command = [sys.executable, *options, str(folder / "one_run.py"), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def copy_of_packages(folder: Path) -> Path:
    """Return another checkout, to be modified."""
    shutil.copytree(ROOT / "advisor", folder / "advisor")
    shutil.copytree(ROOT / "adapters", folder / "adapters")
    return folder


def test_the_shipper_is_of_the_trainers_version_and_imports_nothing_from_its_folder(uri: str, tmp_path: Path) -> None:
    """The script also ends without a ResourceWarning."""
    checkout = copy_of_packages(tmp_path / "checkout")
    shipper = checkout / "adapters" / "advisor_logging" / "shipper.py"
    names = checkout / "advisor" / "contract" / "__init__.py"
    names.write_text(names.read_text() + '\nTAG_GIT_COMMIT = "commit.of.another.version"\n')
    shipper.write_text(shipper.read_text().replace("def main(", "def start(", 1))
    process_py = shipper.with_name("shipper_process.py")
    process_py.write_text(process_py.read_text().replace("import main\nmain(", "import start\nstart("))
    (tmp_path / "mlflow.py").write_text("raise SystemExit('the wrong mlflow')")
    subprocess.run("git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x", shell=True, check=True)
    assert run_script(tmp_path, uri, checkout, checkout / "adapters", options=("-W", "always::ResourceWarning")) == ""
    (run,) = runs(uri)
    assert "commit.of.another.version" in run.data.tags


def test_a_shipper_that_dies_is_said_to_have_died(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    checkout = copy_of_packages(tmp_path / "checkout")
    shipper = checkout / "adapters" / "advisor_logging" / "shipper.py"
    broken = shipper.read_text().replace("    os.nice(10)", "    raise ImportError('no http://joe:pa55word@host')", 1)
    shipper.write_text(broken)
    folders = {"advisor": str(checkout), "advisor_logging": str(checkout / "adapters")}
    monkeypatch.setattr(shipper_process, "_PACKAGE_FOLDERS", folders)
    shipper_process._stop_idle_shippers()
    began = time.monotonic()
    make_run(start, train, uri)
    assert time.monotonic() - began < 150, "nobody waits for the dead"
    (folder,) = (tmp_path / "spool").iterdir()
    said = "\n".join(caplog.messages)
    assert "the shipper process failed with exit status 1: ImportError: no http://***@host" in said
    assert f"the points stay in {folder}" in said
    assert "slow" not in said
    assert "retries for" not in said


def test_an_idle_shipper_leaves_after_a_while_and_is_replaced(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    monkeypatch.setattr(shipper_process, "SHIPPER_STANDBY_S", 0.5)
    shipper_process._stop_idle_shippers()
    first = make_run(start, train, uri)
    assert ends(pid(first), 60)
    second = make_run(start, train, uri)
    assert pid(second) != pid(first)
    assert len(runs(uri)) == 2
    assert caplog.messages == []
