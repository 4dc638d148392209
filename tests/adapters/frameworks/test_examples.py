"""The examples run, and what they log is a study that can be analysed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.tracking import read_study

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("script", "experiment", "objective"),
    [("train_lightning.py", "digits-lightning", "val/error"), ("train_transformers.py", "sums", "eval_loss")],
)
def test_examples(
    script: str,
    experiment: str,
    objective: str,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [str(EXAMPLES / script), "--max-train-steps", "42", "--learning-rate"]
    done = subprocess.run([sys.executable, *command, "0.001"], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "advisor:" not in done.stderr
    assert "lowest validation" in done.stdout
    monkeypatch.setattr("sys.argv", [*command, "0.1"])
    runpy.run_path(command[0], run_name="__main__")  # in this process, which has the frameworks imported
    assert "lowest validation" in capsys.readouterr().out
    study = read_study(experiment, tracking_uri=uri)
    assert study.spec.objective.metric == objective
    assert {t.status for t in study.trials} == {"complete"}
    assert {study.planned_steps(t) for t in study.trials} == {42}
    assert list(study.searched) == ["learning_rate"]
    assert {"train_loss", "grad_norm", "learning_rate", "step_time", "data_wait"} <= study.signals.keys()
