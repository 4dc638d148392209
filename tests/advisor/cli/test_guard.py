"""The command `advisor guard`: judging the running trials, and keeping one verdict in a file."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import commands
import pytest
from guarded import log_study
from launches import wait_until
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.contract.guard_file import read_verdict


@pytest.fixture
def advisor(capfd: pytest.CaptureFixture[str]) -> commands.Advisor:
    return partial(commands.outcome_of, capfd)


def test_running_trials_are_judged(database: str, advisor: commands.Advisor) -> None:
    run_id = log_study(database)
    status, out, err = advisor("guard", "e", "--tracking-uri", database)
    assert (status, err) == (0, "")
    assert out.startswith("trial-5  doomed  step 8 of 12  trial-5 cannot become the best")
    assert out.endswith("1 trial can be stopped without loss.\n")
    status, out, _ = advisor("guard", "e", "--tracking-uri", database, "--json")
    (trial,) = json.loads(out)["trials"]
    assert (trial["run_id"], trial["state"], trial["step"], trial["length"], trial["stop"]) == (run_id, "doomed", 8, 12.0, True)
    MlflowClient(database).set_terminated(run_id)
    assert advisor("guard", "e", "--tracking-uri", database) == (0, "No trial is running.\n", "")


def test_a_continued_trial_need_not_be_stopped(database: str, advisor: commands.Advisor) -> None:
    log_study(database, **{contract.TAG_CONTINUED_AFTER_STOP: "{}"})
    _, out, _ = advisor("guard", "e", "--tracking-uri", database)
    assert out.startswith("trial-5  doomed")
    assert out.endswith("No trial needs to be stopped.\n")


OFTEN = """
import sys
from advisor.cli import main
from advisor.execution.guarding import GuardedStudy
GuardedStudy.__init__.__defaults__ = (None, False, None, None, 0.1)
main(sys.argv[1:])
"""
"""Runs the command line with a guard that reads the store often."""


@pytest.mark.parametrize("end", ["ended", "deleted"])
def test_the_file_follows_a_run_until_it_ends(database: str, tmp_path: Path, end: str) -> None:
    run_id = log_study(database)
    words = ["guard", "e", "--tracking-uri", database, "--watch", "verdict", "--run", run_id]
    watching = commands.fork(["-c", OFTEN, *words], tmp_path)
    wait_until(lambda: read_verdict(tmp_path / "verdict") is not None or watching.poll() is not None)
    verdict = read_verdict(tmp_path / "verdict")
    assert verdict is not None
    assert (verdict["state"], verdict["step"], verdict["stop"]) == ("doomed", 8, True)
    client = MlflowClient(database)
    client.set_terminated(run_id) if end == "ended" else client.delete_run(run_id)
    assert watching.wait(240) == 0


def test_the_guard_of_a_file_ends_with_the_calling_process(database: str, tmp_path: Path) -> None:
    run_id = log_study(database)
    words = [*commands.ADVISOR, "guard", "e", "--tracking-uri", database, "--watch", "verdict", "--run", run_id]
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until((tmp_path / "verdict").exists)
    parent.kill()
    parent.wait()
    wait_until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--watch", "verdict"], "belong together"),
        (["--run", "abc"], "belong together"),
        (["--watch", "verdict", "--run", "abc", "--json"], "leave out either option"),
        (["--watch", "verdict", "--run", "abc"], "abc"),
        (["--watch", "missing/verdict", "--run", "abc"], "there is no folder"),
        (["--study", "missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_input_is_one_line(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advisor: commands.Advisor, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    MlflowClient(database).create_experiment("e")
    status, out, err = advisor("guard", "e", "--tracking-uri", database, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_a_run_of_another_experiment_is_refused(database: str, tmp_path: Path, advisor: commands.Advisor) -> None:
    run_id = log_study(database)
    file = tmp_path / "verdict"
    status, _, err = advisor("guard", "other", "--tracking-uri", database, "--watch", file, "--run", run_id)
    assert status == 2
    assert "is of experiment 'e', not 'other'" in err


@pytest.mark.parametrize("uri", ["sqlite:///missing.db", "http://127.0.0.1:9"])
def test_a_store_that_is_missing_or_away_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advisor: commands.Advisor, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = advisor("guard", "e", "--tracking-uri", uri)
    assert (status, err.count("\n")) == (2, 1)
    assert not list(tmp_path.iterdir())
