"""The demo, run for real: both rounds, trained as any study is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from commands import ADVISOR

from advisor import contract
from advisor.cli.demo.command import run_demo
from advisor.execution.ledger import claims
from advisor.tracking.stores.reading import read_experiment


@pytest.mark.slow
def test_the_demo_trains_two_rounds_that_are_recorded_as_studies(tmp_path, monkeypatch) -> None:
    lines: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_demo(tmp_path / "out", trials=6, seed=0, echo=lines.append)
    assert lines[0].startswith("Round 1: 6 trials of a small network on handwritten digits")
    assert "in round 1" in lines[-1]
    for study in ("digits", "digits-round-2"):
        runs = read_experiment(study, tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db").runs
        assert sorted(run.name for run in runs) == sorted(f"trial-{i}" for i in range(len(runs)))
        assert {run.tags[contract.TAG_STATUS] for run in runs} == {"complete"}
        assert {claims.read_claim(run.tags[contract.TAG_LAUNCH])["state"] for run in runs} == {"done"}
    assert (tmp_path / "out" / "round-2" / "report.html").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing beside its folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is a console event there")
def test_ctrl_c_ends_the_demo_without_training_the_trials_that_wait(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = [*ADVISOR, "demo", "--out", "out", "--trials", "200"]
    demo = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not list(tmp_path.glob("out/checkpoints/*")) and demo.poll() is None:
            time.sleep(0.1)
        os.killpg(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert "interrupted" in errors
