"""A full disk stops no training, and no password is written anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fault_servers import until
from faults import small_disk
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.cli.main import cli
from advisor_logging.recorder import Recorder
from advisor_logging.shipper import Shipper, lock_spool as spool_lock
from tests.adapters.fixture_types import History, OnlyRun, Start, Train
from tests.adapters.samples import kill_shipper, steps


def settled(recorder: Recorder) -> None:
    until(lambda: recorder._queue.qsize() == 0, 60, "everything is written")


def test_a_full_disk_loses_steps_that_are_counted_and_nothing_else(
    uri: str, tmp_path: Path, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    with small_disk(tmp_path / "small", 1) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        log = start("sqlite:////proc/nowhere/mlflow.db", spool=tmp_path / "small", close_timeout_s=0.1)
        recorder = log._recorder
        assert recorder is not None
        for first in range(0, 20_000, 200):
            recorder.put(steps(first, 200))
        settled(recorder)
        train(log, 50)
        log.evaluate({"val/error": 0.25}, step=77)
        log.close()
        kill_shipper(recorder)
        (waits,) = (message for message in caplog.messages if "wait in memory" in message)
        assert "No space left" in waits
        assert "training continues" in waits
        (lost,) = (message for message in caplog.messages if "points are lost" in message)
        assert "No space left" in lost
        for left in recorder.folder.glob("reserve"):
            left.unlink()
        copied = tmp_path / "copy"
        subprocess.run(["cp", "-r", recorder.folder, copied], check=True)
    assert Shipper(copied, uri, None).deliver(0.0)
    run = only_run()
    assert history(run, "val/error") == {77: 0.25}
    assert contract.TAG_STATUS in run.data.tags
    steps_kept = sum(p["rows"] for p in json.loads(run.data.tags[contract.TAG_CURVE_FILES])["parts"])
    assert steps_kept > 8 * 5_000
    assert int(run.data.tags[contract.TAG_LOST_POINTS]) > 8 * 5_000


def test_a_disk_that_refuses_the_start_leaves_no_spool(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `advisor sync` would deliver a run of a training that never began."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("advisor_logging.spool.write_json", refuse)
    with pytest.raises(OSError, match="No space left"):
        start("sqlite:////proc/x.db", spool=tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def is_locked(folder: Path) -> bool:
    held = spool_lock(folder)
    if held is not None:
        held.release()
    return held is None


SECRET_TRAINER = """
import sys, torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with TuningLogger(
    model, optimizer, params={}, objective="val/error", experiment="test", tracking_uri=input(), close_timeout_s=0.5
) as log:
    for _ in range(600):
        optimizer.step()
    log.evaluate({"val/error": 0.5})
    print(log._recorder._shipper._process.pid, flush=True)
    input()
"""


def assert_no_file_contains(secret: bytes, folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path


@pytest.mark.parametrize(
    "address",
    [
        "http://joe:pa55word@127.0.0.1:9",
        pytest.param("postgresql+psycopg2://joe:pa55word@127.0.0.1:9/db?password=pa55word", marks=pytest.mark.slow),
    ],
)
def test_a_password_is_nowhere(uri: str, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", SECRET_TRAINER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(address + "\n")
    trainer.stdin.flush()
    shipper = int(trainer.stdout.readline())
    until(lambda: list((tmp_path / "spool").glob("*/status.json")), 30, "the shipper has tried")
    for commands in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert b"pa55word" not in commands.read_bytes()
        except OSError:
            continue
    said = "".join(trainer.communicate("\n"))
    assert "MLflow at" in said
    (folder,) = (tmp_path / "spool").iterdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    asked = CliRunner().invoke(cli, ["sync", str(folder)])
    assert asked.exit_code == 1
    for text in (said, asked.stdout, asked.stderr):
        assert "pa55word" not in text
    for text in (asked.stdout, asked.stderr):
        assert re.search(r"\*\*\*@127.0.0.1", text) or "another process" in text
    assert_no_file_contains(b"pa55word", tmp_path)
    os.kill(shipper, signal.SIGKILL)
    until(lambda: not is_locked(folder), 10, "the shipper is gone")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    done = CliRunner().invoke(cli, ["sync", str(folder), "--tracking-uri", uri])
    assert done.exit_code == 0, done.stderr
    assert any(tmp_path.rglob("curves.parquet"))
    assert_no_file_contains(b"pa55word", tmp_path)
    assert MlflowClient(uri).search_experiments(filter_string="name = 'test'")
