"""One process at a time opens a new SQLite store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from advisor_logging import store


def test_trials_that_start_together_make_one_whole_store(tmp_path):
    """Two processes that open a missing store must not create its tables at the same time."""
    script = (
        "import sys; from advisor_logging.store import Store; "
        "store = Store(sys.argv[1]); "
        "store.open_run({'spool': sys.argv[2], 'experiment': 'together', 'run_id': None, 'run_name': None, "
        "'ends_run': True, 'start_ms': 0, 'source_tags': {}})"
    )
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    runs = [
        subprocess.Popen([sys.executable, "-c", script, uri, str(i)], stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    failed = [said for run in runs for said in [run.communicate(timeout=120)[1]] if run.returncode != 0]
    assert not failed, failed[0]

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_a_link_that_somebody_put_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with store.one_at_a_time(uri):
        (lock_file,) = tmp_path.glob("*.lock")
    (tmp_path / "precious").write_text("kept")
    lock_file.unlink()
    lock_file.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"), store.one_at_a_time(uri):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
