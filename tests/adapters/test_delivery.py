"""What happens to points when the trainer, the shipper or the store fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.entities import Run

from advisor import contract
from advisor_logging import spool
from advisor_logging.shipper import Shipper
from advisor_pytorch import TuningLogger

OnlyRun = Callable[[], Run]
History = Callable[[Run, str], dict[int, float]]
Start = Callable[..., TuningLogger]
Train = Callable[..., None]

TRAINER = """
import sys, time, torch
from advisor_pytorch import TuningLogger
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = TuningLogger(model, optimizer, params={}, objective="val/error", experiment="test", tracking_uri=sys.argv[1])
while True:
    loss = model(torch.ones(2)).sum()
    loss.backward()
    optimizer.step()
    log.step(loss)
    print(log.steps, flush=True)
    time.sleep(0.01)
"""


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def spools(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "spool").iterdir())


def test_a_killed_trainer_loses_a_second_at_most(uri: str, tmp_path: Path, only_run: OnlyRun, history: History) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER, uri], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        for line in trainer.stdout:
            if int(line) >= 200:
                break
        os.kill(trainer.pid, signal.SIGKILL)
        printed = [int(line), *map(int, trainer.stdout)][-1]
    until(lambda: not spools(tmp_path), 30)  # tidied up: everything is delivered
    run = only_run()
    assert run.info.status == "KILLED"
    assert contract.TAG_STATUS not in run.data.tags
    losses = history(run, contract.TRAIN_LOSS)
    assert list(losses) == list(range(len(losses)))
    assert printed - len(losses) <= 100


def test_a_delivery_that_was_cut_off_is_repeated_without_doubles(
    uri: str, tmp_path: Path, only_run: OnlyRun, history: History
) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    described = {"experiment": "test", "run_id": None, "run_name": None, "ends_run": True, "start_ms": 0}
    spool.write_json(
        folder / "run.json", {**described, "spool": "abc", "source_tags": {}, "tracking_uri": uri, "cwd": "/"}
    )
    writer = spool.SpoolWriter(folder)
    rows = [(step, 1000 + step, {"m": float(step), "n": float("nan")}) for step in range(1503)]
    for i in range(0, len(rows), 101):
        writer.append(spool.encode_rows(spool.STEPS, rows[i : i + 101]))
    writer.append(spool.encode_rows(spool.EVALUATION, [(9, 9, {"val": float("nan")})]))
    assert Shipper(folder, uri, None).deliver(0.0)
    (folder / "acknowledged.json").unlink()  # as if it had been killed before it noted anything
    assert Shipper(folder, uri, None).deliver(0.0)
    assert Shipper(folder, uri, None).deliver(0.0)  # and before it noted the last batch, in the middle of a window
    run = only_run()
    assert list(history(run, "m"))[:500] == list(range(500))
    assert history(run, "m")[1003] == 1001.5
    assert history(run, "m.max")[1502] == 1502
    assert len(history(run, "n")) == len(history(run, "m"))
    assert list(history(run, "val")) == [9]


def test_a_spool_that_was_left_is_delivered_by_hand(
    uri: str, tmp_path: Path, only_run: OnlyRun, start: Start, train: Train
) -> None:
    with start("sqlite:////proc/nowhere/mlflow.db", close_timeout_s=0.5, max_train_steps=5) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.5})
    assert log._recorder is not None
    assert log._recorder._shipper is not None
    log._recorder._shipper._process.kill()
    log._recorder._shipper._process.wait()
    (folder,) = spools(tmp_path)
    command = [sys.executable, "-c", "from advisor.cli import main; main()", "sync", str(folder)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "is unreachable" in refused.stderr
    assert "Traceback" not in refused.stderr
    subprocess.run([*command, "--tracking-uri", uri], check=True, capture_output=True)
    assert only_run().data.tags[contract.TAG_STATUS] == "complete"
    assert spools(tmp_path) == []


def test_a_database_that_cannot_be_opened_is_named_with_its_error(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    (tmp_path / "a_folder").mkdir()
    with start(f"sqlite:///{tmp_path / 'a_folder'}", close_timeout_s=0.5, max_train_steps=5) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.5})
        (status,) = [folder / "status.json" for folder in spools(tmp_path)]
        until(lambda: status.exists() and spool.read_json(status).get("error"), 120)
    recorder = log._recorder
    assert recorder is not None
    assert recorder._shipper is not None
    recorder._shipper._process.kill()  # it would go on trying
    recorder._shipper._process.wait()
    said = caplog.messages[-1]
    assert "did not store everything within 0.5 s" in said
    assert "unable to open database file" in said
    assert "slow" not in said


def test_trials_that_start_together_make_one_whole_store(tmp_path):
    """Two processes that open a store that is not there yet must not create its tables at the same time."""
    script = (
        "import sys; from advisor_logging.store import Store; "
        "store = Store(sys.argv[1]); "
        "store.open_run({'spool': sys.argv[2], 'experiment': 'together', 'run_id': None, 'run_name': None, "
        "'ends_run': True, 'start_ms': 0, 'source_tags': {}})"
    )
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    runs = [
        subprocess.Popen([sys.executable, "-c", script, uri, str(i)], stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    failed = [said for run in runs for said in [run.communicate(timeout=120)[1]] if run.returncode != 0]
    assert not failed, failed[0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2
