from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from small_experiments import experiment, points, run

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.study import Study
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.silent_runs import end_silent_runs

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


def statuses_after_a_day(params: list[dict[str, int]], evaluations: list[int], interval: list[int]) -> list[str]:
    """Return the statuses of running runs that log a training loss every 50 steps. interval: steps between evaluations."""
    ends = [n * every for n, every in zip(evaluations, interval, strict=True)]
    valid = [(i, s * interval[i], 1.0, 100.0 + s) for i, n in enumerate(evaluations) for s in range(1, n + 1)]
    train = [(i, s, 1.0, 100.0 + s / 50) for i, end in enumerate(ends) for s in range(50, end + 1, 50)]
    runs = [run(i, "RUNNING", **p) for i, p in enumerate(params)]
    ended, _ = end_silent_runs(experiment(runs, val__loss=points(*valid), train__loss=points(*train)), now=1e6)
    return [r.status for r in ended.runs]


def test_larger_batches_need_fewer_steps_for_an_equal_length() -> None:
    params = [{"batch_size": b} for b in (32, 64, 256, 256)]
    statuses = statuses_after_a_day(params, [10, 10, 10, 5], [800, 400, 100, 100])
    assert statuses == ["FINISHED", "FINISHED", "FINISHED", "KILLED"]


def test_a_searched_number_of_epochs_is_the_length_of_a_run() -> None:
    params = [{"epochs": e} for e in (10, 30, 100, 100)]
    assert statuses_after_a_day(params, [10, 30, 100, 40], [100] * 4) == ["FINISHED", "FINISHED", "FINISHED", "KILLED"]


def test_runs_are_silent_each_by_its_own_times() -> None:
    """Points are unsorted, times may be unknown, and a run that logged nothing is not silent."""
    now = 1e6
    runs = [run(0, "RUNNING"), run(1, "SCHEDULED"), run(2), run(3, "RUNNING"), run(4, "RUNNING", started=None)]
    rows = [(4, 1, 1.0, now - 2 * HOUR_S), (1, 2, 1.0, now - 60), (1, 1, 1.0, 200.0), (0, 2, 1.0, 300.0), (0, 1, 1.0, 200.0)]
    ended, _ = end_silent_runs(experiment(runs, val__loss=points(*rows, (2, 2, 1.0, 300.0), (0, 3, 1.0, np.nan))), now)
    assert [r.status for r in ended.runs] == ["FINISHED", "SCHEDULED", "FINISHED", "RUNNING", "KILLED"]
    assert end_silent_runs(experiment(runs), now)[1] == ()
