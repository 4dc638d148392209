"""What reading returns, for stores of every kind."""

from __future__ import annotations

import math
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
from experiments import START_S, refused, same, through_client

from advisor.tracking.runs import Experiment
from advisor.tracking.stores.reading import read_experiment


def curve(experiment: Experiment, run: str, metric: str) -> tuple[list[int], list[float], list[float]]:
    index = [r.name for r in experiment.runs].index(run)
    points = experiment.points[metric]
    mine = points.runs == index
    return points.steps[mine].tolist(), points.values[mine].tolist(), points.times[mine].tolist()


def test_runs_come_with_status_times_params_and_tags(odd_database: Path) -> None:
    runs = read_experiment("odd", tracking_uri=f"sqlite:///{odd_database}").runs
    assert [r.name for r in runs] == ["sweep", "first", "resumed", "tagged"]  # the deleted one is left out
    assert [r.status for r in runs] == ["FINISHED", "FINISHED", "RUNNING", "KILLED"]
    assert (runs[1].started, runs[1].ended) == (START_S + 1, START_S + 9)
    assert runs[2].ended is None
    assert runs[1].params == {"lr": "1e-3", "name": "ünï code", "empty": ""}
    assert runs[1].tags["mlflow.parentRunId"] == runs[0].id
    assert runs[1].tags["mlflow.note.content"] == "a note"
    assert runs[1].tags["team"] == "vision"


def test_points_are_exact_and_raw(odd_database: Path) -> None:
    experiment = read_experiment("odd", tracking_uri=str(odd_database))
    steps, values, times = curve(experiment, "first", "val/loss")
    assert steps == [0, 2, 4, 6, 8, 10, 12]
    np.testing.assert_array_equal(values, [1.5, math.nan, math.inf, -math.inf, 0.1 + 0.2, 5e-324, -0.25])
    np.testing.assert_allclose(np.array(times) - START_S, 1 + np.arange(7) / 100, atol=1e-6)
    steps, values, _ = curve(experiment, "resumed", "val/loss")
    assert steps == [2, 4, 4, 1, 7]  # in the order of time: steps repeat and go back
    assert values == [0.8, 0.5, 0.4, 0.9, 0.3]


def test_a_point_without_a_time_has_none(odd_database: Path) -> None:
    steps, values, times = curve(read_experiment("odd", tracking_uri=str(odd_database)), "resumed", "untimed")
    assert (steps, values) == ([0, 5], [3.0, 2.0])
    assert np.isnan(times).all()


def test_long_and_many_tags_are_cut_but_ours_are_complete(odd_database: Path) -> None:
    experiment = read_experiment("odd", tracking_uri=str(odd_database))
    tags = experiment.runs[3].tags
    assert len([k for k in tags if k.startswith("tag")]) == 300
    assert len(tags["tag000"]) == 5000
    assert tags["advisor.seed"] == "7"
    assert "mlflow.log-model.history" not in tags
    assert experiment.tags["advisor.objective"] == "val/loss"
    assert len(experiment.tags["note"]) == 5000


def test_a_run_with_very_many_tags_is_not_read_whole(odd_database: Path, tmp_path: Path) -> None:
    store = shutil.copy(odd_database, tmp_path / "mlflow.db")
    with closing(sqlite3.connect(store)) as connection:
        (run,) = connection.execute("SELECT run_uuid FROM runs WHERE name = 'first'").fetchone()
        many = ((f"user{i:06}", "x" * 100, run) for i in range(100_000))
        connection.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", many)
        connection.commit()
    tracemalloc.start()
    experiment = read_experiment("odd", tracking_uri=str(store))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len([k for k in experiment.runs[1].tags if k.startswith("user")]) == 299  # and one named team
    assert peak < 10e6  # all of them would take 30 MB


def test_system_metrics_are_not_read(odd_database: Path) -> None:
    assert "system/cpu" not in read_experiment("odd", tracking_uri=str(odd_database)).points


def test_an_experiment_is_found_by_id_and_progress_is_reported(odd_database: Path) -> None:
    reported = []
    by_name = read_experiment("odd", tracking_uri=str(odd_database), on_progress=lambda *p: reported.append(p))
    same(by_name, read_experiment("1", tracking_uri=str(odd_database)))
    assert reported[-1] == (4, 4)


def test_sql_reads_what_the_client_reads(odd_database: Path) -> None:
    uri = f"sqlite:///{odd_database}"
    same(read_experiment("odd", tracking_uri=uri), through_client(uri))


def test_unknown_deleted_and_empty_experiments(odd_database: Path) -> None:
    uri = str(odd_database)
    assert refused("no experiment named", "othr studi", tracking_uri=uri).endswith(
        "its experiments are: other study, Default, odd"
    )
    refused("was deleted; restore it with: mlflow experiments restore -x 3", "gone", tracking_uri=uri)
    refused("has no runs; train some trials first", "other study", tracking_uri=uri)
    refused("no run of .* matches --filter", "odd", tracking_uri=uri, filter="params.lr = 'x'")
