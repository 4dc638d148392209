"""Fixtures of the tests of faults: a store with a small study, and the command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Advisor, Refused, status_of
from faults import small_disk


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """An SQLite store with an experiment "e" of 18 trials, to be copied."""
    from kill_base import write_source

    from advisor.interop.importers.importing import import_runs
    from advisor.interop.importers.tabular import TableImporter

    folder = tmp_path_factory.mktemp("studied")
    store = Path(shutil.copy(empty_store, folder / "mlflow.db"))
    runs = TableImporter("csv").find_runs(write_source(folder / "source", 200, 18))
    import_runs(runs, tracking_uri=f"sqlite:///{store}", experiment="e", objective="val_loss", direction="minimize")
    return store


@pytest.fixture
def store(studied: Path, tmp_path: Path) -> Path:
    """A separate copy of the store `studied` for each test."""
    (tmp_path / "store").mkdir()
    return Path(shutil.copy(studied, tmp_path / "store" / "mlflow.db"))


@pytest.fixture
def advisor(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Advisor:
    """Run the command line in the test's folder; return (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = status_of(*arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def refused(advisor: Advisor) -> Refused:
    """Run a command that must fail with one clear line and status 2; return the line."""

    def run(*arguments: object) -> str:
        status, _, err = advisor(*arguments)
        assert status == 2, err
        assert err.startswith("advisor: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        assert "(a bug" not in err
        return err

    return run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate small disk."""
    with small_disk(tmp_path / "disk", 8) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        yield tmp_path / "disk"
