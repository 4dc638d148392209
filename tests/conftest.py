"""Fixtures of all tests."""

from __future__ import annotations

import copy
import gc
import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from advisor.contract import redact

os.environ["ADVISOR_CACHE"] = "off"  # tests of the cache set their own folder
# Otherwise each worker would compile all tests again, and each process that a test starts all sources.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# This process and those that tests start spend less time on garbage collection.
STARTUP = Path(__file__).parent / "startup"
runpy.run_path(str(STARTUP / "sitecustomize.py"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))
_STARTS: dict[str, Any] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Run all tests of a file, or of a group of files, in one worker."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from scheduling import ByFile

    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Exclude all modules and tests from garbage collections: the frameworks start one in each training, for half a second."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run short test files last."""
    if hasattr(config, "workerinput"):
        from scheduling import is_last

        items.sort(key=lambda item: is_last(item.path, Path(__file__).parent))


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Reset a module's generator `RNG` before each test, so that results do not depend on the order of tests."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        start = _STARTS.setdefault(request.module.__name__, copy.deepcopy(rng.bit_generator.state))
        rng.bit_generator.state = copy.deepcopy(start)


@pytest.fixture(autouse=True)
def same_environment_for_each_test() -> Iterator[None]:
    """Restore environment variables after each test: `mlflow.set_tracking_uri` sets MLFLOW_TRACKING_URI permanently."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(autouse=True)
def same_secrets_for_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the passwords of a test, because these words would be redacted in the texts of later tests."""
    monkeypatch.setattr(redact, "_secret_replacements", dict(redact._secret_replacements))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite store of MLflow to copy, because creating one takes seconds."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "store" / "mlflow.db"  # one for all workers
    with FileLock(path.parent.with_suffix(".lock")):
        if not path.exists():
            path.parent.mkdir()
            SqlAlchemyStore(f"sqlite:///{path}", str(path.parent)).engine.dispose()
    return path


@pytest.fixture
def database(empty_store: Path, tmp_path: Path) -> str:
    """Address of a new SQLite store, `mlflow.db` in the test's folder."""
    return f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}"


CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, started once in each process, because a process cannot control a second browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: none of chromium, chromium-browser, google-chrome is on the path")
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of fuzzed cases."""
    reports = [r for of_kind in terminalreporter.stats.values() for r in of_kind]
    counts = [
        dict(getattr(r, "user_properties", ())).get("fuzz cases", 0) for r in reports if getattr(r, "when", "") == "teardown"
    ]
    if any(counts):
        terminalreporter.write_line(f"{sum(counts):,} cases of hostile and broken data")
