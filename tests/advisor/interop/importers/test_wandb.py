"""Runs that wandb itself wrote offline, and exports of their histories."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from imports import assert_same, falling, stored

from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("wandb")  # they share a run

pytest.importorskip("wandb")

SCRIPT = """
import json, sys, wandb
for i, rate in enumerate(json.loads(sys.argv[1])):
    run = wandb.init(project="digits", name=f"run-{i}", id=f"id{i}", notes="a note",
                     config={"lr": rate, "optimizer": {"name": "adam"}, "seed": i, "max_steps": 100})
    for step, value in json.loads(sys.argv[2])[i]:
        row = {"val/loss": value, "nested": {"acc": step / 100}, "words": "x", "flag": True}
        if step == 0:
            row["gap"] = float("nan")
        run.log(row, step=step)
    run.summary["test/best"] = 7
    run.finish(exit_code=1 if i == 2 else 0)
"""
RATES = [1e-4, 1e-3, 1e-2, 1e-1]


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offline")
    curves = json.dumps([falling(rate, range(0, 100, 2)) for rate in RATES])
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(RATES), curves]
    subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True)
    return folder / "wandb"


def expected():
    return {
        f"run-{i}": {
            "val/loss": falling(rate, range(0, 100, 2)),
            "nested.acc": [(s, s / 100) for s in range(0, 100, 2)],
            "gap": [(0, math.nan)],
            "test/best": [(98, 7.0)],
        }
        for i, rate in enumerate(RATES)
    }


def test_offline_runs(offline, imported):
    experiment = imported(["wandb", offline], "digits", expected(), "val/loss")
    assert [r.status for r in experiment.runs] == ["FINISHED", "FINISHED", "FAILED", "FINISHED"]
    first = experiment.runs[0]
    assert first.params == {"lr": "0.0001", "optimizer.name": "adam", "seed": "0", "max_steps": "100"}
    tags = {k: first.tags[k] for k in ("advisor.seed", "advisor.max_train_steps", "mlflow.note.content")}
    assert tags == {"advisor.seed": "0", "advisor.max_train_steps": "100", "mlflow.note.content": "a note"}
    assert np.isfinite(experiment.points["val/loss"].times).all()


def test_without_a_path_it_is_the_folder_of_the_tool(offline, advisor, uri, monkeypatch):
    for place in (offline.parent, offline):
        monkeypatch.chdir(place)
        status, out, err = advisor("import", "wandb", "--tracking-uri", uri)
        assert status == 0, err
        assert "digits" in out


def test_a_run_that_was_killed_gives_what_it_has(offline, tmp_path, advisor, uri):
    folder = next(offline.glob("offline-run-*-id0"))
    shutil.copytree(folder, tmp_path / folder.name)
    (record,) = (tmp_path / folder.name).glob("*.wandb")
    whole = record.read_bytes()
    record.write_bytes(whole[: len(whole) // 2])
    status, _, err = advisor("import", tmp_path / folder.name)
    assert status == 0
    assert "is truncated or damaged at byte" in err
    half = stored(uri, "digits")["run-0"]["val/loss"]
    assert 5 < len(half) < 50
    assert half == falling(RATES[0], range(0, 100, 2))[: len(half)]
    assert read_experiment("digits", tracking_uri=uri).runs[0].status == "KILLED"
    record.write_bytes(whole)
    assert "1 extended" in advisor("import", tmp_path / folder.name)[1]
    assert_same(stored(uri, "digits"), {"run-0": expected()["run-0"]})
    assert read_experiment("digits", tracking_uri=uri).runs[0].status == "FINISHED"


def test_downloaded_files_without_the_records(tmp_path, advisor, uri):
    files = tmp_path / "runs/run-1/files"
    files.mkdir(parents=True)
    (files / "config.yaml").write_text("wandb_version: 1\n_wandb:\n  value: {}\nlr:\n  desc: null\n  value: 0.1\n")
    (files / "wandb-summary.json").write_text('{"_step": 9, "loss": 0.5, "bad": NaN, "_runtime": 3}')
    assert advisor("import", tmp_path / "runs")[0] == 0
    assert_same(stored(uri, "runs"), {"run-1": {"loss": [(9, 0.5)], "bad": [(9, math.nan)]}})
    assert read_experiment("runs", tracking_uri=uri).runs[0].params == {"lr": "0.1"}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_exported_histories(tmp_path, imported, kind):
    folder = tmp_path / "exports"
    folder.mkdir()
    all_points = {}
    for i, rate in enumerate(RATES):
        curve = falling(rate, range(0, 60, 2))
        rows = [
            {"_step": s, "_runtime": s * 1.5, "_timestamp": 1.7e9 + s, "val/loss": v, "train/loss": v / 2 if s % 4 else None}
            for s, v in curve
        ]
        path = folder / f"run{i}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif kind == "csv":
            cells = [",".join("" if c is None else repr(c) for c in row.values()) for row in rows]
            path.write_text("\n".join([",".join(rows[0]), *cells]) + "\n")
        else:
            pa.parquet.write_table(pa.Table.from_pylist(rows), path)
        (folder / f"run{i}.json").write_text(json.dumps({"lr": {"value": rate, "desc": None}, "_wandb": {"value": 1}}))
        all_points[f"run{i}"] = {"val/loss": curve, "train/loss": [(s, v / 2) for s, v in curve if s % 4]}
    experiment = imported(["wandb", folder], "exports", all_points, "val/loss")
    assert {r.name: r.params["lr"] for r in experiment.runs} == {f"run{i}": str(rate) for i, rate in enumerate(RATES)}
    assert experiment.points["val/loss"].times[0] == 1.7e9


def test_what_cannot_be_read_is_refused(tmp_path, refused):
    (tmp_path / "run-x.wandb").write_bytes(b"nothing of the kind")
    assert "is not a file of W&B records" in refused("wandb", tmp_path / "run-x.wandb")
    (tmp_path / "run-x.wandb").write_bytes(b":W&B\xe1\xbe\0" + b"\xff" * 100)
    assert "contains no run" in refused("wandb", tmp_path)
    (tmp_path / "run-x.wandb").write_bytes(b"")
    assert "is not a file of W&B records" in refused("wandb", tmp_path)
    (tmp_path / "none").mkdir()
    assert "file in this folder" in refused("wandb", tmp_path / "none")
