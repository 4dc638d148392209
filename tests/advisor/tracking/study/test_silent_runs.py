from __future__ import annotations

import time
from pathlib import Path

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.study import Study
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble

HOUR_S = 3600.0


def study_of_running_runs(folder: Path, runs: list[tuple[int, float, float]]) -> Study:
    """Return a study of runs that nobody ended, from a real store. runs: (steps, pause between values, silence), in seconds."""
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e")
    now = time.time()
    for i, (steps, pause, silence) in enumerate(runs):
        ends = now - silence
        start = ends - steps * pause
        run = client.create_run(experiment, start_time=int(1000 * start), tags={contract.TAG_OBJECTIVE: "val_loss"})
        client.log_param(run.info.run_id, "lr", 0.1 / (i + 1))
        values = [Metric("val_loss", 1 / (s + i), int(1000 * (start + s * pause)), s) for s in range(1, steps + 1)]
        client.log_batch(run.info.run_id, metrics=values)
    return assemble(read_experiment("e", tracking_uri=uri), objective="val_loss", direction="minimize")


def test_runs_that_nobody_ended_count_as_ended_when_they_are_silent(tmp_path):
    study = study_of_running_runs(tmp_path, [(10, 60, 3 * HOUR_S), (10, 60, 2 * HOUR_S), (4, 60, 2 * HOUR_S), (10, 60, 60)])
    assert [t.status for t in study.trials] == ["complete", "complete", "stopped", "running"]
    (decision,) = [d.text for d in study.decisions if "MLflow calls running" in d.text]
    assert decision.startswith(
        "3 runs that MLflow calls running logged nothing for over 1 h and count as ended, 1 of them before"
    )


def test_a_run_with_long_pauses_is_silent_only_after_longer_ones(tmp_path):
    study = study_of_running_runs(tmp_path, [(5, 60, 12 * HOUR_S), (5, HOUR_S, 5 * HOUR_S)])
    assert [t.status for t in study.trials] == ["complete", "running"]


def test_a_study_of_active_runs_says_when_they_would_count(tmp_path):
    with pytest.raises(AdvisorError, match=r"2 are running.*set_terminated; runs that log nothing for an hour count as ended"):
        study_of_running_runs(tmp_path, [(10, 60, 60), (10, 60, 60)])
