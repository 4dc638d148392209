"""The record of a decision in SQLite stores and through MLflow's client."""

import sqlite3

import pytest
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.tracking import gate_record
from advisor.tracking.gate_record import write_gate_record


def test_mlflow_reads_the_tag_and_a_later_one_replaces_it(database):
    client = MlflowClient(database)
    run = client.create_run(client.create_experiment("e")).info.run_id
    for text in ("first", "second"):
        write_gate_record(run, text, tracking_uri=database)
        assert client.get_run(run).data.tags[contract.TAG_GATE] == text


def test_a_folder_of_files_is_written_through_the_client(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(f"file://{tmp_path}/mlruns")
    run = client.create_run(client.create_experiment("e")).info.run_id
    write_gate_record(run, "text", tracking_uri=str(tmp_path / "mlruns"))
    assert client.get_run(run).data.tags[contract.TAG_GATE] == "text"


def test_a_store_that_refuses_gives_one_line(database, tmp_path, monkeypatch):
    monkeypatch.setattr(gate_record, "_TIMEOUT_S", 0.1)
    with pytest.raises(AdvisorError, match="cannot write"):
        write_gate_record("r", "text", tracking_uri=f"sqlite:///{tmp_path}/absent.db")
    blocker = sqlite3.connect(database.removeprefix("sqlite:///"))
    blocker.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(AdvisorError, match="locked"):
            write_gate_record("r", "text", tracking_uri=database)
    finally:
        blocker.close()
