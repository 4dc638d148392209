"""Result folders of Ray Tune: one recorded of a real search, and a real search."""

import math
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from imports import Bomb, stored

from advisor.tracking import read_study
from advisor.tracking.stores.reading import read_experiment

RECORDED = Path(__file__).parent / "ray_results/digits"
RATES = [0.001, 0.01, 0.1, 0.9]
SEARCH = """
import math, sys
import ray
from ray import tune

def train(config):
    for step in range(1, 13):
        if config["lr"] > 0.5 and step == 4:
            raise RuntimeError("CUDA out of memory")
        best = abs(math.log10(config["lr"]) + 2) / 4
        tune.report({"val": {"loss": best + 2 * math.exp(-step / 3)}, "gap": float("nan") if step == 2 else 1.0})

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
space = {"lr": tune.grid_search([0.001, 0.01, 0.1, 0.9]), "model": {"depth": 2}, "seed": 3}
tune.Tuner(train, param_space=space, tune_config=tune.TuneConfig(metric="val/loss", mode="min"),
           run_config=tune.RunConfig(name="digits", storage_path=sys.argv[1])).fit()
"""


def points(rate):
    steps = range(1, 4 if rate > 0.5 else 13)
    best = abs(math.log10(rate) + 2) / 4
    return {
        "val/loss": [(s, best + 2 * math.exp(-s / 3)) for s in steps],
        "gap": [(s, math.nan if s == 2 else 1.0) for s in steps],
    }


def check(folder, imported, uri):
    trials = sorted(path.name for path in folder.iterdir() if path.name.startswith("train_"))
    expected = {trial: points(rate) for trial, rate in zip(trials, RATES, strict=True)}
    experiment = imported(["ray", folder], "digits", expected)
    runs = {run.name: run for run in experiment.runs}
    assert [runs[t].params for t in trials] == [{"lr": str(r), "model.depth": "2", "seed": "3"} for r in RATES]
    assert [runs[t].status for t in trials] == ["FINISHED"] * 3 + ["FAILED"]
    assert runs[trials[3]].tags["advisor.error"] == "out of memory: RuntimeError: CUDA out of memory"
    assert runs[trials[0]].tags["advisor.seed"] == "3"
    assert np.isfinite(experiment.points["val/loss"].times).all()
    study = read_study("digits", tracking_uri=uri)
    assert study.spec.objective.metric == "val/loss"
    assert "objective" not in study.inferred
    assert [t.status for t in sorted(study.trials, key=lambda t: t.name)][3] == "infeasible"


def test_a_recorded_search(imported, uri):
    check(RECORDED, imported, uri)


@pytest.mark.slow
def test_a_real_search(tmp_path, imported, uri):
    pytest.importorskip("ray.tune")
    environment = {**os.environ, "RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", SEARCH, str(tmp_path / "ray")], check=True, env=environment, timeout=300)
    check(tmp_path / "ray/digits", imported, uri)


def test_without_the_state_and_with_pickles_that_are_never_opened(tmp_path, advisor, uri):
    folder = tmp_path / "digits"
    shutil.copytree(RECORDED, folder)
    (state,) = folder.glob("experiment_state*")
    state.unlink()
    for below in (folder, *(p for p in folder.iterdir() if p.is_dir())):
        for name in ("params.pkl", "tuner.pkl", "error.pkl"):
            (below / name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert advisor("import", folder)[0] == 0
    assert not (tmp_path / "exploded").exists()
    experiment = read_experiment("digits", tracking_uri=uri)
    assert sorted(run.status for run in experiment.runs) == ["FAILED", "FINISHED", "FINISHED", "FINISHED"]
    assert "advisor.objective" not in experiment.tags


def test_the_error_is_the_text_after_a_progress_bar(tmp_path, advisor, uri):
    folder = tmp_path / "digits/train_3"
    shutil.copytree(next(RECORDED.glob("*_00003_*")), folder)
    (folder / "error.txt").write_bytes(b"Traceback\n 40%|####      |\rValueError: lr\r\n")
    assert advisor("import", tmp_path / "digits")[0] == 0
    (run,) = read_experiment("digits", tracking_uri=uri).runs
    assert run.tags["advisor.error"] == "ValueError: lr"


def test_a_trial_that_goes_on_is_completed(tmp_path, advisor, uri):
    folder = tmp_path / "digits/train_0"
    shutil.copytree(next(RECORDED.glob("*_00000_*")), folder)
    results = (folder / "result.json").read_text()
    half = results.splitlines(keepends=True)[:5]
    (folder / "result.json").write_text("".join(half) + half[0][:30])  # the next line is being written
    assert advisor("import", tmp_path / "digits")[1].startswith("Imported 1 trial with 10 points")
    (folder / "result.json").write_text(results)
    assert advisor("import", tmp_path / "digits")[1].startswith("Imported 0 trials with 14 points, 1 extended")
    assert len(stored(uri, "digits")["train_0"]["val/loss"]) == 12


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    assert "no trial there or below" in refused("ray", tmp_path)
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "params.json").write_text("{}")
    (folder / "result.json").write_text('{"loss": 1}\n')
    assert "has no 'training_iteration'" in refused("ray", tmp_path)
    (folder / "params.json").write_text("[1]")
    assert "must hold a mapping" in refused("ray", tmp_path)
