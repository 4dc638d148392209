"""`advisor sync` finds undelivered spools, describes them, and delivers them once, also from another machine's copy."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result
from commands import status_of
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.cli.main import cli
from advisor_logging import spool, sync
from advisor_logging.shipper import Shipper, lock_spool
from tests.adapters.fixture_types import History, OnlyRun

NOW = int(time.time() * 1000)


@pytest.fixture
def left(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Leave a spool like a training that never reached its store."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    def make(name: str, *, steps: int = 700, ended: bool = True, at: Path | None = None, **settings: object) -> Path:
        folder = (at or tmp_path / "spool") / name
        folder.mkdir(parents=True)
        run = {"spool": os.urandom(6).hex(), "experiment": "test", "run_id": None, "run_name": name, "ends_run": True}
        run |= {"start_ms": NOW - 10**7, "source_tags": {}, "tracking_uri": uri, "cwd": str(tmp_path)}
        spool.write_json(folder / "run.json", {**run, "host": socket.gethostname(), "process": 2**22 + 1, **settings})
        write(folder, range(steps), ended=ended)
        return folder

    return make


def write(folder: Path, steps: range, *, ended: bool) -> None:
    writer = spool.SpoolWriter(folder)
    for step in steps:
        writer.append(spool.encode_rows(spool.STEPS, [(step, NOW - 10**7 + step, {"m": float(step)})]))
    writer.append(spool.encode_event({"params": {"lr": "0.1"}}))
    if ended:
        end = {"status": "FINISHED", "time_ms": NOW - 5000, "tags": {contract.TAG_STATUS: "complete"}}
        writer.append(spool.encode_event({"end": end}))
    writer.close()


def run_sync(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["sync", *map(str, arguments)])


WHOLE = [*range(500), *range(501, 700, 2)]


def test_what_is_left_is_found_listed_and_delivered(
    left: Callable[..., Path], tmp_path: Path, only_run: OnlyRun, history: History
) -> None:
    assert "No logs are waiting" in run_sync().output
    folder = left("forgotten", at=tmp_path / "state" / "tuning-advisor" / "spool")
    listed = run_sync("--list")
    assert listed.exit_code == 0
    line = listed.output.splitlines()[1]
    for part in ("forgotten", "test", "3 h", "700", "MB", f"sqlite:///{tmp_path}"):
        assert part in line
    assert folder.exists()
    done = run_sync()
    assert (done.exit_code, done.stderr) == (0, "")
    assert "Delivered the logs of 1 of 1 runs." in done.output
    assert list(history(only_run(), "m")) == WHOLE
    assert only_run().data.tags[contract.TAG_STATUS] == "complete"
    assert only_run().data.params == {"lr": "0.1"}
    assert not folder.exists()


def test_all_places_are_looked_into_but_not_those_of_others(left: Callable[..., Path], tmp_path: Path) -> None:
    shared = tmp_path / "tmp" / f"tuning-advisor-{os.getuid()}"
    left("a", at=tmp_path / "state" / "tuning-advisor" / "spool", steps=3)
    left("b", at=tmp_path / "spool", steps=3)
    left("c", at=shared, steps=3)
    assert [s.name for s in sync.find_own_spools()] == ["b", "a", "c"]
    if os.getuid() == 0:
        os.chown(shared, 12345, 12345)
        assert [s.name for s in sync.find_own_spools()] == ["b", "a"]


def test_what_others_deliver_or_still_write_is_left(left: Callable[..., Path], tmp_path: Path) -> None:
    held = left("held", steps=3)
    left("trains", steps=3, ended=False, process=os.getpid(), start_ms=NOW + 1000)
    (tmp_path / "spool" / "broken").mkdir()
    (tmp_path / "spool" / "broken" / "run.json").write_text('{"half')
    lock_held = lock_spool(held)
    done = run_sync()
    assert lock_held is not None
    lock_held.release()
    assert done.exit_code == 1
    assert "Delivered the logs of 0 of 3 runs." in done.output
    reasons = sorted(line.rpartition(": ")[2] for line in done.stderr.splitlines())
    assert reasons == [
        "another process is delivering it; after the training, that process retries for 10 minutes",
        "the spool is damaged or has an unknown format",
        "the training is still running and will deliver the spool",
    ]


@pytest.mark.parametrize("settings", ["nowhere", "."])
def test_a_folder_without_spools_is_said(
    tmp_path: Path, settings: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert status_of("sync", settings) == 2
    refused = capsys.readouterr().err
    assert refused in ("advisor: there is no folder nowhere\n", "advisor: . contains no spool\n")


def test_a_copy_from_another_machine(
    left: Callable[..., Path], uri: str, tmp_path: Path, only_run: OnlyRun, history: History
) -> None:
    settings = {"host": "node7", "cwd": "/home/elsewhere", "tracking_uri": "sqlite:////home/elsewhere/mlflow.db"}
    copy = left("copied", **settings)
    refused = run_sync(copy)
    assert refused.exit_code == 1
    assert "was recorded for sqlite:////home/elsewhere/mlflow.db on node7: give --tracking-uri" in refused.stderr
    assert run_sync(copy, "--tracking-uri", uri).exit_code == 0
    assert list(history(only_run(), "m")) == WHOLE


def test_nothing_is_doubled_by_a_copy(
    left: Callable[..., Path], uri: str, tmp_path: Path, only_run: OnlyRun, history: History
) -> None:
    """One machine has delivered everything; another one has an older copy."""
    original = left("run", host="node7")
    late = shutil.copytree(original, tmp_path / "copies" / "late")
    assert Shipper(original, uri, None).deliver(0.0)
    assert run_sync(late, "--tracking-uri", uri).exit_code == 0
    assert not late.exists()
    assert list(history(only_run(), "m")) == WHOLE


def test_a_training_that_goes_on_elsewhere_is_not_ended_by_a_copy(
    left: Callable[..., Path], uri: str, tmp_path: Path, only_run: OnlyRun, history: History
) -> None:
    early = left("early", host="node7", steps=600, ended=False)
    first = run_sync(early, "--tracking-uri", uri)  # the other machine is down: this is the only copy
    assert (first.exit_code, first.stderr) == (0, "")
    assert only_run().info.status == "KILLED"
    run = only_run()
    again = left("again", host="node7", steps=300, ended=False)
    description = spool.read_json_object(again / "run.json") | {"spool": run.data.tags[contract.TAG_SPOOL]}
    spool.write_json(again / "run.json", description)
    MlflowClient(uri).update_run(run.info.run_id, status="RUNNING")  # it is up again, and ahead of the copy
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("UPDATE runs SET end_time = NULL")
    connection.close()
    refused = run_sync(again, "--tracking-uri", uri)
    assert "the store has later points than this copy: a process on node7 delivers the run" in refused.stderr
    young = left("young", host="node7", steps=0, ended=False, start_ms=int(time.time() * 1000))
    assert "may still be running on node7" in run_sync(young, "--tracking-uri", uri).stderr
    assert only_run().info.status == "RUNNING"
    assert list(history(only_run(), "m")) == [*range(500), *range(501, 600, 2)]


def test_a_store_out_of_reach_and_a_password_that_was_not_kept(left: Callable[..., Path]) -> None:
    folder = left("unreachable", steps=3, tracking_uri="http://127.0.0.1:9")
    left("secret", steps=3, tracking_uri="http://***@127.0.0.1:9")
    done = run_sync("-q")
    assert done.exit_code == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "spools do not store the password of http://***@127.0.0.1:9: give the whole address with --tracking-uri" in lines[0]
    reason = "http://127.0.0.1:9 is unreachable (connection refused)"
    assert lines[1] == f"advisor: unreachable remains in {folder}: {reason}"


def test_what_a_killed_process_left_of_a_delivered_spool_is_removed(left: Callable[..., Path], uri: str) -> None:
    folder = left("first")
    spool.write_json(folder / "run.json", {**spool.read_json_object(folder / "run.json"), "delivered": True})
    for segment in folder.glob("*.spool"):
        segment.unlink()
    assert run_sync(folder).exit_code == 0
    assert not folder.exists()
    assert MlflowClient(uri).get_experiment_by_name("test") is None


def test_nothing_is_left_of_a_spool_whose_removal_was_killed(left: Callable[..., Path]) -> None:
    emptied = left("first").with_name("before.delivered")
    emptied.mkdir()
    half = left("second").rename(emptied.with_name("second.delivered"))
    spool.write_json(half / "run.json", {**spool.read_json_object(half / "run.json"), "delivered": True})
    assert run_sync(emptied.parent).exit_code == 0
    assert list(emptied.parent.iterdir()) == []


def test_a_delivery_that_was_killed_before_its_last_word_is_finished(
    left: Callable[..., Path], uri: str, tmp_path: Path, only_run: OnlyRun
) -> None:
    folder = left("first")
    shutil.copytree(folder, tmp_path / "again" / "first")
    assert run_sync(folder).exit_code == 0
    MlflowClient(uri).delete_tag(only_run().info.run_id, contract.TAG_CURVE_FILES)
    assert run_sync(tmp_path / "again").exit_code == 0
    assert contract.TAG_CURVE_FILES in only_run().data.tags


def test_the_module_delivers_as_the_command_does(left: Callable[..., Path], only_run: OnlyRun) -> None:
    folder = left("by hand")
    command = [sys.executable, "-m", "advisor_logging"]
    assert subprocess.run([*command, str(folder)], check=False, capture_output=True, text=True).stderr == ""
    assert only_run().info.run_name == "by hand"
    refused = subprocess.run([*command, str(folder)], check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr == f"there is no folder {folder}\n"


def test_the_experiment_is_that_of_the_training_and_not_of_who_delivers(
    left: Callable[..., Path], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left("named", steps=3)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    assert run_sync(folder).exit_code == 0
    assert json.dumps([e.name for e in MlflowClient(uri).search_experiments()]) == '["test", "Default"]'


class _Listener(http.server.BaseHTTPRequestHandler):
    """A server that records what clients send to it."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", "no token"))
        self.send_error(500)

    do_POST = do_GET  # noqa: N815 - the name that the base class calls

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[str]:
    _Listener.seen.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["elsewhere", "", socket.gethostname()])
def test_a_spool_from_elsewhere_learns_no_token(
    left: Callable[..., Path], listener: str, host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token-of-the-user")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = left("hostile", steps=3, tracking_uri=listener, host=host, at=tmp_path / "download")
    refused = run_sync(folder)
    assert refused.exit_code == 1
    assert "a store that you did not name" in refused.stderr
    assert "--as-recorded" in refused.stderr
    assert _Listener.seen == []
    assert folder.exists()


def test_the_user_may_name_the_store_of_a_spool_from_elsewhere(
    left: Callable[..., Path], listener: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token-of-the-user")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = left("copied", steps=3, tracking_uri=listener, host="elsewhere", at=tmp_path / "download")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{listener}/")
    run_sync(folder)
    assert "Bearer token-of-the-user" in _Listener.seen
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    _Listener.seen.clear()
    run_sync(folder, "--as-recorded")
    assert "Bearer token-of-the-user" in _Listener.seen


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"start_ms": 1e400}', '{"start_ms": Infinity}', "[]", "null", '{"start_ms": ' + "9" * 5000 + "}"]
)
def test_a_hostile_description_is_unreadable(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert sync.inspect_spool(tmp_path).state == "unreadable"
