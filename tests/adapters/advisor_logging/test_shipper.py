"""Delivery when the trainer, the shipper, the server or its database fail: every point arrives once."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_servers import Postgres
from faults import FAULTS, Result, Stage, Training, running_stage, small_disk, wait_for_delivery
from forks import Fork

from advisor import contract
from advisor_logging import spool
from advisor_logging.shipper import Shipper
from tests.adapters.fixture_types import History, OnlyRun, Start, Train
from tests.adapters.samples import kill_shipper

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
    trainer = Fork(["-c", TRAINER, uri], tmp_path, os.environ)
    until(lambda: len(trainer.output.split()) >= 200, 120)
    trainer.kill()
    assert trainer.wait(60) == -signal.SIGKILL
    printed = int(trainer.output.split()[-1])
    until(lambda: not spools(tmp_path), 30)  # removed: everything is delivered
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
    spool.write_json(folder / "run.json", {**described, "spool": "abc", "source_tags": {}, "tracking_uri": uri, "cwd": "/"})
    writer = spool.SpoolWriter(folder)
    rows = [(step, 1000 + step, {"m": float(step), "n": float("nan")}) for step in range(1503)]
    for i in range(0, len(rows), 101):
        writer.append(spool.encode_rows(spool.STEPS, rows[i : i + 101]))
    writer.append(spool.encode_rows(spool.EVALUATION, [(9, 9, {"val": float("nan")})]))
    assert Shipper(folder, uri, None).deliver(0.0)
    (folder / "acknowledged.json").unlink()  # like a kill before the first acknowledgement
    assert Shipper(folder, uri, None).deliver(0.0)
    assert Shipper(folder, uri, None).deliver(0.0)  # and before the last acknowledgement, in the middle of a window
    run = only_run()
    assert list(history(run, "m"))[:500] == list(range(500))
    assert history(run, "m")[1003] == 1001.5
    assert history(run, "m.max")[1502] == 1502
    assert len(history(run, "n")) == len(history(run, "m"))
    assert list(history(run, "val")) == [9]


def test_a_database_that_cannot_be_opened_is_named_with_its_error(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start, train: Train
) -> None:
    (tmp_path / "a_folder").mkdir()
    with start(f"sqlite:///{tmp_path / 'a_folder'}", close_timeout_s=0.5, max_train_steps=5) as log:
        train(log, 5)
        log.evaluate({"val/error": 0.5})
        (status,) = [folder / "status.json" for folder in spools(tmp_path)]
        until(lambda: status.exists() and spool.read_json_object(status).get("error"), 120)
    kill_shipper(log._recorder)
    said = caplog.messages[-1]
    assert "did not store everything within 0.5 s" in said
    assert "unable to open database file" in said
    assert "slow" not in said


pytestmark = pytest.mark.xdist_group("faults")


needs_postgres = pytest.mark.skipif(
    Postgres.binaries() is None or importlib.util.find_spec("psycopg2") is None,
    reason="needs PostgreSQL: initdb is not there, or psycopg2 is not installed",
)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    pytest.importorskip("flask", reason='needs MLflow\'s server: pip install "tuning-advisor[ui]"')
    with running_stage("sqlite", tmp_path_factory.mktemp("sqlite"), steps=900) as stage:
        yield stage


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    pytest.importorskip("flask", reason='needs MLflow\'s server: pip install "tuning-advisor[ui]"')
    with running_stage("postgresql", tmp_path_factory.mktemp("postgresql"), steps=900) as stage:
        yield stage


def check(result: Result, status: str | None = "complete") -> None:
    assert result.logged.total() > 1000
    assert result.found - result.logged == {}, "points that were not logged, or twice"
    assert result.logged - result.found == {}, "points that were not found"
    assert result.recorded == result.in_sidecar
    assert result.tags.get(contract.TAG_STATUS) == status
    assert contract.TAG_LOST_POINTS not in result.tags
    assert len(result.warnings) <= 1


def test_sqlite_behind_a_server_that_fails_and_dies(sqlite: Stage) -> None:
    """30 % of the answers are errors, resets or late, also after the server has stored the data; in between it is killed."""
    with sqlite.behind_proxy(share=0.3) as proxy:
        training = sqlite.train("together", proxy.uri)
        training.until(300)
        sqlite.server.kill()
        training.until(600)
        sqlite.server.start()
        check(wait_for_delivery(sqlite, training))
        assert proxy.injected["500"] + proxy.injected["reset"] + proxy.injected["500 after"] > 0


@needs_postgres
def test_postgresql_is_stopped_behind_its_server(postgresql: Stage) -> None:
    check(wait_for_delivery(postgresql, FAULTS["database stopped, restarted"](postgresql)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "disk" not in fault and "database" not in fault])
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_each_fault(backend: str, fault: str, request: pytest.FixtureRequest) -> None:
    stage: Stage = request.getfixturevalue(backend)
    result = wait_for_delivery(stage, FAULTS[fault](stage))
    check(result, None if fault.startswith("trainer") else "complete")


@pytest.mark.slow
def test_the_server_has_no_disk_left(tmp_path: Path) -> None:
    pytest.importorskip("flask")
    with small_disk(tmp_path / "database", 64) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        with running_stage("sqlite", tmp_path, steps=900) as stage:
            check(wait_for_delivery(stage, FAULTS["server's disk full"](stage)))


@pytest.mark.slow
def test_the_number_of_requests_is_sensible(sqlite: Stage) -> None:
    with sqlite.behind_proxy() as proxy:
        training: Training = sqlite.train("requests", proxy.uri)
        result = wait_for_delivery(sqlite, training)
        check(result)
        sent: Callable[[str], int] = lambda end: sum(n for path, n in proxy.requests.items() if path.endswith(end))  # noqa: E731
        assert sent("log-batch") <= 30, "a batch for every two seconds, NaN apart, and a few for tags"
        assert sum(proxy.requests.values()) <= 50


@pytest.mark.slow
def test_a_trainer_killed_behind_a_server_loses_a_second_at_most(sqlite: Stage) -> None:
    training = sqlite.train("loses")
    training.until(600)
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    made = training.step + 1
    result = wait_for_delivery(sqlite, training)
    arrived = sum(count for (name, *_), count in result.found.items() if name == contract.TRAIN_LOSS)
    windows_of = 500 + (made - 500) // 2
    assert windows_of - arrived <= 1.0 / 0.003
    assert result.same
