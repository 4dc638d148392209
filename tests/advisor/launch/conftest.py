"""What the tests of launching share: a store that is there already, for making one takes seconds."""

import shutil

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An SQLite store of MLflow's without experiments of ours."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments(max_results=1)
    return file


@pytest.fixture
def project(tmp_path, empty_store, monkeypatch):
    """A folder of its own with a store in it, as the working directory; its name has what names may have."""
    own = tmp_path / "my prøject"
    own.mkdir()
    shutil.copy(empty_store, own / "mlflow.db")
    monkeypatch.chdir(own)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return own
