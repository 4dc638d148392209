"""Opening a store: one process at a time creates it; a run that was created twice is used once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import requests
from forks import Fork
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor_logging import store


def test_trials_that_start_together_make_one_whole_store(tmp_path):
    """Two processes that open a missing store must not create its tables at the same time."""
    script = (
        "import sys; from advisor_logging.store import MlflowStore; "
        "store = MlflowStore(sys.argv[1]); "
        "store.open_run({'spool': sys.argv[2], 'experiment': 'together', 'run_id': None, 'run_name': None, "
        "'ends_run': True, 'start_ms': 0, 'source_tags': {}})"
    )
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    runs = [Fork(["-c", script, uri, str(i)], tmp_path, os.environ) for i in range(2)]
    failed = [said for run in runs for said in [run.communicate(timeout=120)[1]] if run.returncode != 0]
    assert not failed, failed[0]

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_a_link_that_somebody_put_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with store.lock_store_opening(uri):
        (lock_file,) = tmp_path.glob("*.lock")
    (tmp_path / "precious").write_text("kept")
    lock_file.unlink()
    lock_file.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"), store.lock_store_opening(uri):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


SPOOL = {"spool": "abc", "experiment": "e", "run_id": None, "run_name": "r", "ends_run": True, "start_ms": 0}


def twins(database: str, count: int) -> tuple[MlflowClient, list[str]]:
    """Create several runs of one spool, as a server does that hung while the request was repeated."""
    client = MlflowClient(database)
    experiment = client.create_experiment("e")
    ids = [client.create_run(experiment, tags={contract.TAG_SPOOL: "abc"}).info.run_id for _ in range(count)]
    return client, ids


def test_of_runs_that_were_created_twice_the_one_with_data_is_used(database: str) -> None:
    client, ids = twins(database, 4)
    described = {**SPOOL, "source_tags": {}}
    first = store.MlflowStore(database).open_run(described)
    assert store.MlflowStore(database).open_run(described) == first
    (other,) = sorted(set(ids) - {first})[-1:]
    assert store.MlflowStore(database).open_run(described, other) == other
    client.log_metric(other, "loss", 1.0, timestamp=5)
    opened = store.MlflowStore(database)
    assert opened.open_run(described) == other
    assert opened.find_run(described) == store.StoredRunState(5, None, "")
    opened.delete_duplicate_runs(described)
    left = client.search_runs([client.get_run(other).info.experiment_id])
    assert [run.info.run_id for run in left] == [other]


def test_twins_with_data_are_not_deleted(database: str) -> None:
    client, ids = twins(database, 2)
    for run in ids:
        client.log_metric(run, "loss", 1.0, timestamp=5)
    opened = store.MlflowStore(database)
    opened.open_run({**SPOOL, "source_tags": {}})
    opened.delete_duplicate_runs({**SPOOL, "source_tags": {}})
    assert len(client.search_runs([client.get_run(ids[0]).info.experiment_id])) == 2


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EACCES, "denied"), False),
        (ConnectionResetError(), True),
        (requests.ConnectionError(), True),
        (MlflowException("Max retries exceeded"), True),
        (MlflowException("no", error_code=PERMISSION_DENIED), False),
        (ImportError("boto3"), False),
    ],
    ids=repr,
)
def test_temporary_errors(error: Exception, temporary: bool) -> None:
    assert store.is_temporary_error(error) is temporary
