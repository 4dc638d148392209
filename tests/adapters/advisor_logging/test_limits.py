"""No single value blocks a delivery: texts and numbers are cleaned, and what the store refuses is set aside and reported."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.cli.main import cli
from advisor_logging import spool
from advisor_logging.limits import MAX_EXACT_STEP, MAX_NAME_CHARS, clean_table, clean_text
from advisor_logging.table import MetricTable
from tests.adapters.fixture_types import History, OnlyRun, Start, Train

NO_UTF8 = "caf\udce9"


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OddNumber:
    def __float__(self) -> float:
        raise OddError


def test_texts_that_no_store_accepts_are_cleaned(
    uri: str, only_run: OnlyRun, history: History, start: Start, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{NO_UTF8}.py", f"--data=http://me:pass{NO_UTF8}@host/\0"])
    monkeypatch.setattr(sys, "orig_argv", ["python", *sys.argv])
    monkeypatch.setenv("SOME_TOKEN", f"secret{NO_UTF8}")
    params = {"text": f"{NO_UTF8}\0", "odd": Odd(), "token": "x"}
    with start(uri, params=params, run_name="n" * 300) as log:
        train(log, 3)
        for fact in ({"a": 1}, {"odd": Odd()}, {NO_UTF8: "x"}, {Odd(): 1}, {"long" * 100: 1}, None, 3):
            log.note(fact)  # type: ignore[arg-type]
        log.evaluate({"val/error": 0.5, Odd(): 1.0, "number": OddNumber(), "fine": 1.0})  # type: ignore[dict-item]
        log.step(OddNumber())  # type: ignore[arg-type]
    run = only_run()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "n" * MAX_NAME_CHARS
    assert run.data.params == {"text": "caf\ufffd\ufffd", "odd": "<Odd>", "token": "***"}
    assert run.data.tags["a"] == "1"
    assert run.data.tags["odd"] == "<Odd>"
    assert run.data.tags[("long" * 100)[:MAX_NAME_CHARS]] == "1"
    assert "caf" in run.data.tags[contract.TAG_COMMAND]
    assert history(run, "fine") == {2: 1.0}


def test_steps_and_times_out_of_range_are_counted_and_block_nothing(
    uri: str,
    only_run: OnlyRun,
    history: History,
    start: Start,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: -86_400.0)
        log = start(uri)
        train(log, 3)
        log.evaluate({"val/error": 0.5}, step=2**63 - 1)
        log.evaluate({"val/error": 0.25})
        log.close()
    run = only_run()
    assert run.info.status == "FINISHED"
    assert history(run, "val/error") == {2: 0.25}
    assert list(history(run, contract.TRAIN_LOSS)) == [0, 1, 2]
    assert run.data.tags[contract.TAG_LOST_POINTS] == "1"
    assert "step must be at most" in caplog.text


def test_rows_beyond_the_limits() -> None:
    table = clean_table(MetricTable([1, 2, MAX_EXACT_STEP * 2], [-5, 7, 8], {"m": [1.0, 2.0, 3.0]}))
    assert table == MetricTable([1, 2], [0, 7], {"m": [1.0, 2.0]})
    same = MetricTable([1], [2], {"m": [3.0]})
    assert clean_table(same) is same
    assert clean_text(Odd()) == "<Odd>"


@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_what_the_store_refuses_is_set_aside_and_the_rest_delivered(
    uri: str, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spool of an earlier version, which cleaned nothing, delivered by `advisor sync`."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    to = uri if store == "sqlite" else str(tmp_path / "files")
    leave_spool(tmp_path / "spool" / "old", to)
    done = CliRunner().invoke(cli, ["sync", str(tmp_path / "spool" / "old"), "--quiet"])
    assert done.exit_code == 0, done.output
    (line,) = done.stderr.splitlines()
    assert "the store refused" in line
    assert "tag bad name (1)" in line
    client = MlflowClient(to)
    experiment = client.get_experiment_by_name("test")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["fine"] == "caf\ufffd"
    assert run.data.params == {"lr": "0.1"}
    points = [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, "m")]
    assert sorted(points) == [(step, float(step)) for step in range(300)]
    lost = int(run.data.tags[contract.TAG_LOST_POINTS])
    if store == "files":
        assert "metric val/error" in line
        assert (run.data.metrics["val"], lost) == (1.0, 1)
    else:
        assert (run.data.metrics["val/error"], lost) == (0.5, 1)
    assert not (tmp_path / "spool" / "old").exists()


def leave_spool(folder: Path, uri: str) -> None:
    folder.mkdir(parents=True)
    run: dict[str, Any] = {"spool": "0" * 12, "experiment": "test", "run_id": None, "run_name": f"n{NO_UTF8}" * 100}
    run |= {"start_ms": -5, "source_tags": {"mlflow.user": f"{NO_UTF8}\0"}, "tracking_uri": uri, "cwd": "/"}
    spool.write_json(folder / "run.json", {**run, "ends_run": True, "process": 2**22 + 1})
    writer = spool.SpoolWriter(folder)
    writer.append(spool.encode_event({"tags": {"bad\nname": "x", "fine": NO_UTF8}, "params": {"p\nq": "1", "lr": "0.1"}}))
    for step in range(300):
        writer.append(spool.encode_rows(spool.STEPS, [(step, -step, {"m": float(step)})]))
    for step, values in ((1, {"val": 1.0}), (2, {"val/error": 0.5}), (2**63 - 1, {"huge": 1.0})):
        writer.append(spool.encode_rows(spool.EVALUATION, [(step, 5, values)]))
    writer.append(spool.encode_event({"end": {"status": "FINISHED", "time_ms": 10_000, "tags": {"done": "yes"}}}))
    writer.close()
