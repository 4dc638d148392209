"""Logs of AlgoPerf: raw folders, held against the tidy tables that were made of the same data."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from imports import assert_same, stored

from advisor.tracking.stores.reading import read_experiment

BENCHMARK = Path(os.environ.get("ADVISOR_BENCHMARK", Path(__file__).parents[5] / "shared/benchmark"))
RAW, TABLES = BENCHMARK / "formats/algoperf_baseline", BENCHMARK / "algoperf"
STUDY = "algoperf_v05/external_tuning/baseline/ogbg_jax/study_0"
HEADER = "accumulated_submission_time,global_step,score,validation/accuracy,validation/num_examples,total_duration\n"


def trial(folder, rate=0.1):
    folder.mkdir(parents=True)
    (folder / "hparams.json").write_text(json.dumps({"learning_rate": rate}))
    (folder / "measurements.csv").write_text("global_step,grad_norm,loss,score\n0,2.5,0.75,\n100,nan,0.5,\n101,,,3.0\n")
    (folder / "eval_measurements.csv").write_text(f"{HEADER}1.5,1,1.5,0.5,40,2.0\n20.5,100,20.5,,40,41.0\n")
    return folder


def test_both_files_of_a_trial(tmp_path, advisor, uri):
    folder = tmp_path / "submission/study_0/mnist_jax"
    trial(folder / "trial_1")
    (folder / "mnist_jax_02-04-2024-21-11-51.log").touch()
    assert advisor("import", tmp_path / "submission")[0] == 0
    name = "submission/study_0/mnist_jax"
    batches = {"train_batch/loss": [(0, 0.75), (100, 0.5)], "train_batch/grad_norm": [(0, 2.5), (100, math.nan)]}
    # A blank evaluation is one that gave no number.
    evaluations = {"validation/accuracy": [(1, 0.5), (100, math.nan)], "total_duration_s": [(1, 2.0), (100, 41.0)]}
    assert_same(stored(uri, name), {"trial_1": {**batches, **evaluations}})
    experiment = read_experiment(name, tracking_uri=uri)
    assert experiment.tags["advisor.direction"] == "maximize"
    (run,) = experiment.runs
    assert (run.params, run.tags["advisor.n_valid"]) == ({"learning_rate": "0.1"}, "40")
    assert run.started == 1706994711 + 86400  # the log's name: 4 February 2024, 21:11:51
    np.testing.assert_allclose(experiment.points["validation/accuracy"].times - run.started, [1.5, 20.5])


@pytest.mark.skipif(not RAW.is_dir(), reason="needs the benchmark's data")
def test_the_raw_folder_agrees_with_the_tables(imported):
    rows = [row for row in pyarrow.parquet.read_table(TABLES / "trials.parquet").to_pylist() if row["study"] == STUDY]
    curves = pyarrow.parquet.read_table(TABLES / "curves.parquet", filters=[("study", "=", STUDY)]).to_pylist()
    expected = {row["trial"]: {} for row in rows}
    for point in curves:
        expected[point["trial"]].setdefault(point["metric"], []).append(point)
    found = imported(
        ["algoperf", RAW],
        "algoperf_baseline/study_0/ogbg_jax",
        {
            trial: {m: sorted((p["step"], p["value"]) for p in points) for m, points in metrics.items()}
            for trial, metrics in expected.items()
        },
        last_bit=False,
    )
    by_name = {run.name: run for run in found.runs}
    for row in rows:
        run = by_name[row["trial"]]
        assert {k: float(v) for k, v in run.params.items()} == json.loads(row["params"])
        assert run.tags["advisor.objective"] == row["objective"]
        assert run.status == "FINISHED"
        points = found.points["validation/loss"]
        mine = points.times[points.runs == found.runs.index(run)] - run.started
        times = [p["time_s"] for p in sorted(expected[row["trial"]]["validation/loss"], key=lambda p: p["step"])]
        np.testing.assert_allclose(np.sort(mine), times, atol=0.001)


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    assert "no measurements.csv there or below" in refused("algoperf", tmp_path)
    (tmp_path / "measurements.csv").write_text("a,b\n1,2\n")
    assert "has no column 'global_step'" in refused("algoperf", tmp_path)
    (tmp_path / "measurements.csv").write_text("global_step,loss\n1,2\n")
    (tmp_path / "hparams.json").write_text("{")
    assert "is not JSON" in refused("algoperf", tmp_path)
