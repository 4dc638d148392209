"""Messages on a study that others train, as `advisor watch --notify` sends them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from guarded import log_study
from launches import wait_until
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.cli.notifying import notify_of_study_events
from advisor.contract.guard_stop import GuardStop
from advisor.execution.guarding import GuardedStudy
from advisor.model.errors import AdvisorError
from advisor.system.notifier import Notifier
from advisor.tracking.stores.location import parse_tracking_uri


def read_notices(file: Path, field: str) -> list[tuple[str, str | None]]:
    messages = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(n["event"], n[field]) for message in messages for n in message.get("bundled", [message])]


def test_verdicts_failures_and_the_end_are_told(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Notifier.__init__.__kwdefaults__, "interval_s", 0.2)
    notices = partial(read_notices, tmp_path / "notices", "trial")
    run_id, client = log_study(database), MlflowClient(database)
    guarded = GuardedStudy("e", parse_tracking_uri(database), interval_s=0.1)
    with notify_of_study_events(f"tee -a '{tmp_path}/notices'", guarded, quiet=False):
        wait_until(lambda: notices() == [("doomed", "trial-5")], 300.0)
        client.set_tag(run_id, contract.TAG_STATUS, "infeasible")
        client.set_terminated(run_id, "FAILED")
        wait_until(lambda: len(notices()) == 3, 300.0)
    assert notices()[1:] == [("failed", "trial-5"), ("ended", None)]


def test_a_stop_by_another_launch_is_told_unless_its_reason_was(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Notifier.__init__.__kwdefaults__, "interval_s", 0.2)
    doomed, client = log_study(database), MlflowClient(database)
    stop = GuardStop("doomed", 8, "it cannot win", 1.0)
    others = [run.info.run_id for run in client.search_runs(["1"]) if run.info.run_id != doomed][:2]

    def end(run_id: str) -> None:
        client.set_tag(run_id, contract.TAG_STATUS, "pruned")
        client.set_tag(run_id, contract.TAG_GUARD_STOP, stop.tag_text())
        client.set_terminated(run_id, "KILLED")

    notices = partial(read_notices, tmp_path / "notices", "message")
    end(others[0])  # before the first reading
    guarded = GuardedStudy("e", parse_tracking_uri(database), interval_s=0.1)
    with notify_of_study_events(f"tee -a '{tmp_path}/notices'", guarded, quiet=False):
        wait_until(lambda: len(notices()) == 1, 300.0)
        end(others[1]), end(doomed)
        wait_until(lambda: notices()[-1][0] == "ended", 300.0)  # at the second reading after the last stop
    assert notices()[0][0] == "doomed"
    assert [message for event, message in notices() if event == "stopped"] == [
        f"{client.get_run(others[1]).info.run_name} was stopped at step 8: it cannot win"
    ]


def test_without_a_command_the_store_is_not_read(tmp_path: Path) -> None:
    with notify_of_study_events(None, GuardedStudy("e", parse_tracking_uri(f"sqlite:///{tmp_path}/missing.db")), quiet=False):
        pass
    assert not list(tmp_path.iterdir())


def test_an_error_is_told_as_the_end(tmp_path: Path) -> None:
    guarded = GuardedStudy("e", parse_tracking_uri(f"sqlite:///{tmp_path}/missing.db"))
    with pytest.raises(AdvisorError), notify_of_study_events(f"tee -a '{tmp_path}/notices'", guarded, quiet=False):
        raise AdvisorError("the first 3 trials all failed")
    notice = json.loads((tmp_path / "notices").read_text())
    assert (notice["event"], notice["message"]) == ("ended", "the first 3 trials all failed")
