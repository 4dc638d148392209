"""A store to begin with, and a page in Chromium that notes whatever is asked for, and whatever goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.templates.conftest import open_page

__all__ = ["open_page"]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that MLflow has set up, to be copied."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
