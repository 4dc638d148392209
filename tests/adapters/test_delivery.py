"""What happens to points when the trainer, the shipper or the store fail."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
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
    command = [sys.executable, "-m", "advisor_logging", str(folder)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "does not take it" in refused.stderr
    assert "Traceback" not in refused.stderr.splitlines()[-1]
    subprocess.run(command, check=True, env={**os.environ, "MLFLOW_TRACKING_URI": uri})
    assert only_run().data.tags[contract.TAG_STATUS] == "complete"
    assert spools(tmp_path) == []


def test_a_database_that_cannot_be_opened_is_named_with_its_error(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    (tmp_path / "a_folder").mkdir()
    with start(f"sqlite:///{tmp_path / 'a_folder'}", close_timeout_s=8.0, max_train_steps=5) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.5})
    recorder = log._recorder
    assert recorder is not None
    assert recorder._shipper is not None
    recorder._shipper._process.kill()  # it would go on trying
    recorder._shipper._process.wait()
    said = caplog.messages[-1]
    assert "did not take everything within 8 s" in said
    assert "unable to open database file" in said
    assert "slow" not in said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(store: str, port: int, folder: Path) -> Iterator[None]:
    """A real tracking server, gone at the end of the block."""
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        store,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--default-artifact-root", str(folder / "artifacts")]
    with open(folder / "server.log", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: answers(port), 60)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("flask") is None, reason='needs MLflow\'s server: pip install "tuning-advisor[ui]"'
)
def test_a_server_may_come_late_and_go_in_between(
    uri: str,
    tmp_path: Path,
    only_run: OnlyRun,
    history: History,
    caplog: pytest.LogCaptureFixture,
    start: Start,
    train: Train,
) -> None:
    port = free_port()
    began = time.monotonic()
    log = start(f"http://joe:pa55word@127.0.0.1:{port}", close_timeout_s=60.0)
    train(log, 50)
    assert time.monotonic() - began < 5.0, "training waited for the server"
    with server(uri, port, tmp_path):
        until(lambda: log.run_id, 40)
        train(log, 50)
        log._capture.flush()
        until(lambda: len(history(only_run(), contract.TRAIN_LOSS)) >= 50, 20)
    train(log, 600)
    log._capture.flush()
    until(lambda: len(caplog.messages) == 1, 20)
    with server(uri, port, tmp_path):
        log.evaluate({"val/error": 0.5})
        log.close()
    run = only_run()
    assert run.info.status == "FINISHED"
    assert list(history(run, contract.TRAIN_LOSS)) == [*range(500), *range(501, 700, 2)]
    assert spools(tmp_path) == []
    (warning,) = caplog.messages
    assert "training goes on" in warning
    assert "***@127.0.0.1" in warning
    assert "pa55word" not in warning


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
        for i in range(4)
    ]
    failed = [said for run in runs for said in [run.communicate(timeout=120)[1]] if run.returncode != 0]
    assert not failed, failed[0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 4
