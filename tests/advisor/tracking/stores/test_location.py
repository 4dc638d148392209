"""Tracking URIs and the default store."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import refused

from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("localhost:5000", "'localhost:5000' is not a tracking URI; did you mean http://localhost:5000[?]$"),
        ("10.0.0.1:80/base", "did you mean http://10.0.0.1:80/base[?]$"),
        ("ftp://x", "^'ftp://x' is not a tracking URI; use sqlite:///file.db, http[(]s[)]://"),
        ("me:hunter2@host:5000", "did you mean http://host:5000[?]$"),
        ("ftp://me:hunter2@x", "ftp://[*]{3}@x"),
    ],
)
def test_the_error_for_an_invalid_uri_shows_a_valid_one(uri: str, message: str) -> None:
    assert "hunter2" not in refused(message, "x", tracking_uri=uri)


def test_managed_stores_are_read_by_mlflow() -> None:
    assert {parse_tracking_uri(uri).kind for uri in ("databricks", "databricks://profile", "uc://x")} == {"other"}


def test_a_missing_store_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    message = refused("no MLflow store found", "x")
    assert str(tmp_path) in message
    assert "--tracking-uri" in message
    assert list(tmp_path.iterdir()) == []


def test_the_default_store_is_mlflows(odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(odd_database.parent)
    assert len(read_experiment("odd").runs) == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{odd_database}")
    assert len(read_experiment("odd").runs) == 4


@pytest.mark.parametrize(
    ("uri", "display"),
    [
        ("http://me:hunter2@host/x", "http://***@host/x"),
        ("https://me:hunt@er2@host/x", "https://***@host/x"),
        ("postgresql+psycopg2://me:hunter2@host/db?password=hunter2", "postgresql+psycopg2://***@host/db?password=***"),
    ],
)
def test_credentials_are_masked(uri: str, display: str) -> None:
    assert parse_tracking_uri(uri).display == display
