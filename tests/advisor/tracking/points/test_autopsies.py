"""Autopsies of runs, read from a database and from a folder of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.tracking import read_study

TEXT = '{"step": 3}'


def log_run(client: MlflowClient, experiment_id: str, folder: Path, text: bytes | None, *, tagged: bool = True) -> None:
    run = client.create_run(experiment_id, tags={contract.TAG_AUTOPSY: "true"} if tagged else {})
    for step in range(3):
        client.log_metric(run.info.run_id, "val/loss", 1.0 - step / 10, step=step)
    if text is not None:
        (folder / "autopsy.json").write_bytes(text)
        client.log_artifact(run.info.run_id, str(folder / "autopsy.json"), "advisor")
    client.set_terminated(run.info.run_id)


@pytest.mark.parametrize("kind", ["database", "folder"])
def test_a_tagged_run_gets_its_autopsy(kind: str, database: str, tmp_path: Path) -> None:
    uri = database if kind == "database" else str(tmp_path / "mlruns")
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    for text, tagged in [
        (TEXT.encode(), True),
        (TEXT.encode(), False),
        (None, True),
        (b"\xff", True),
        (b" " * 1_000_001, True),
    ]:
        log_run(client, experiment_id, tmp_path, text, tagged=tagged)
    study = read_study("e", tracking_uri=uri)
    assert [t.facts.get("autopsy") for t in study.trials] == [TEXT, None, "true", "true", "true"]
    for reason in ("is missing", "is not a text file", "is larger than any autopsy can be"):
        assert f"The cause of a non-finite value is not known, because the autopsy file {reason}." in study.warnings


def test_an_autopsy_that_cannot_be_read_costs_a_warning(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    log_run(client, experiment_id, tmp_path, TEXT.encode())
    (file,) = (tmp_path / "artifacts").rglob("autopsy.json")
    file.unlink()
    file.symlink_to(file.name)  # the user root may read whatever the permissions are, but no link to itself
    (warning,) = [w for w in read_study("e", tracking_uri=uri).warnings if "autopsy" in w]
    assert "could not be read" in warning
