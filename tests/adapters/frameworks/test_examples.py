"""The examples run, and what they log is a study that can be analysed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from advisor.tracking import read_study

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("script", "experiment", "objective"),
    [("train_lightning.py", "digits", "val/error"), ("train_transformers.py", "sums", "eval_loss")],
)
def test_examples(script: str, experiment: str, objective: str, uri: str) -> None:
    for rate in ("0.001", "0.01", "0.1"):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / script), "--learning-rate", rate, "--max-train-steps", "42"],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "advisor:" not in done.stderr
        assert "lowest validation" in done.stdout
    study = read_study(experiment, tracking_uri=uri)
    assert study.spec.objective.metric == objective
    assert {t.status for t in study.trials} == {"complete"}
    assert {study.planned_steps(t) for t in study.trials} == {42}
    assert list(study.searched) == ["learning_rate"]
    assert {"train_loss", "grad_norm", "learning_rate", "step_time", "data_wait"} <= study.signals.keys()
