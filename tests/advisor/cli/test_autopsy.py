"""The command `advisor autopsy`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest
from mlflow.tracking import MlflowClient

from advisor import contract

RECORD: dict[str, Any] = {
    "schema": 1,
    "step": 12,
    "metric": "loss",
    "value": "nan",
    "max_train_steps": 50,
    "batch": [{"name": "[0]", "bad": 3}],
    "epoch": 1,
    "number": 2,
    "following": [[{"name": "[0]", "bad": 0, "max": 2.0}]],
    "parameters": {"tensors": 4},
    "history": {"columns": [], "first": [], "before": [[11, 0.5, 2.0, 0.1, None, None]], "after": []},
}


@pytest.fixture
def advisor(capfd: pytest.CaptureFixture[str], database: str, monkeypatch: pytest.MonkeyPatch) -> commands.Advisor:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    return partial(commands.outcome_of, capfd, "autopsy")


def log(uri: str, folder: Path, name: str, text: str | None) -> str:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("e")
    root = (folder / "artifacts").as_uri()
    experiment_id = client.create_experiment("e", root) if experiment is None else experiment.experiment_id
    kept = {"policy": "last", "kept": [{"step": 10, "path": "c/10.pt"}, {"step": 20, "path": "c/20.pt"}]}
    tags = {contract.TAG_COMMAND: "python train.py", contract.TAG_SEED: "3", contract.TAG_CHECKPOINTS: json.dumps(kept)}
    run_id = str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)
    if text is not None:
        (folder / "autopsy.json").write_text(text)
        client.log_artifact(run_id, str(folder / "autopsy.json"), "advisor")
    return run_id


def test_five_lines_say_what_happened(database: str, tmp_path: Path, advisor: commands.Advisor) -> None:
    run_id = log(database, tmp_path, "t", json.dumps(RECORD))
    status, out, err = advisor("t")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"t ({run_id}): the loss became nan at step 12 of 50.",
        "The batch: tensor [0] of step 12 (batch 2 of epoch 1, from 0) has 3 non-finite values. (certain)",
        "Before: step 11 had loss 0.5, gradient norm 2, rate 0.1; 0 of 4 parameters not finite.",
        "Do: Repair or drop the non-finite examples, and check the data for more.",
        "Replay: from the checkpoint of step 10 (c/10.pt), with seed 3, to step 12: ADVISOR_AUTOPSY=replay python train.py.",
    ]
    status, out, _ = advisor(run_id, "--json")
    assert (status, json.loads(out)["cause"], json.loads(out)["certainty"]) == (0, "batch", "certain")


@pytest.mark.parametrize(
    ("text", "run", "message"),
    [
        (None, "nope", "no run 'nope' in"),
        (None, "it's", 'no run "it\'s" in'),
        (None, "t", "run 't' has no autopsy: its hook saw no non-finite loss or gradient norm"),
        ("{", "t", "the autopsy of this run is damaged"),
        ('{"history": 3, "step": []}', "t", "the autopsy of this run is damaged"),
        (" " * 1_000_001, "t", "the autopsy of run 't' is larger than any autopsy can be"),
    ],
)
def test_bad_input_is_one_line(
    database: str, tmp_path: Path, advisor: commands.Advisor, text: str | None, run: str, message: str
) -> None:
    log(database, tmp_path, "t", text)
    status, out, err = advisor(run)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"advisor: {message}")


def test_an_ambiguous_name_lists_ids(database: str, tmp_path: Path, advisor: commands.Advisor) -> None:
    ids = {log(database, tmp_path, "t", None) for _ in range(2)}
    status, _, err = advisor("t")
    assert status == 2
    assert all(run_id in err for run_id in ids)
