"""A real server, with a real database behind it, fails in many ways: what was logged is found, each point once."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_servers import Postgres
from faults import FAULTS, Result, Stage, Training, settle, small_disk, staged

from advisor import contract

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("flask") is None, reason='needs MLflow\'s server: pip install "tuning-advisor[ui]"'
    ),
    pytest.mark.xdist_group("faults"),
]
needs_postgres = pytest.mark.skipif(
    Postgres.binaries() is None or importlib.util.find_spec("psycopg2") is None,
    reason="needs PostgreSQL: initdb is not there, or psycopg2 is not installed",
)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged("sqlite", tmp_path_factory.mktemp("sqlite"), steps=900) as stage:
        yield stage


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged("postgresql", tmp_path_factory.mktemp("postgresql"), steps=900) as stage:
        yield stage


def check(result: Result, status: str | None = "complete") -> None:
    assert result.logged.total() > 1000
    assert result.found - result.logged == {}, "points that were not logged, or twice"
    assert result.logged - result.found == {}, "points that were not found"
    assert result.recorded == result.in_sidecar
    assert result.tags.get(contract.TAG_STATUS) == status
    assert contract.TAG_LOST_POINTS not in result.tags
    assert len(result.warnings) <= 1


def test_sqlite_behind_a_server_that_fails_and_dies(sqlite: Stage) -> None:
    """30 % of the answers are errors, resets, or late, also after the server has done its work; meanwhile it is killed."""
    with sqlite.behind_proxy(share=0.3) as proxy:
        training = sqlite.train("together", proxy.uri)
        training.until(300)
        sqlite.server.kill()
        training.until(600)
        sqlite.server.start()
        check(settle(sqlite, training))
        assert proxy.injected["500"] + proxy.injected["reset"] + proxy.injected["500 after"] > 0


@needs_postgres
def test_postgresql_is_stopped_behind_its_server(postgresql: Stage) -> None:
    check(settle(postgresql, FAULTS["database stopped, restarted"](postgresql)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "disk" not in fault and "database" not in fault])
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_each_fault(backend: str, fault: str, request: pytest.FixtureRequest) -> None:
    stage: Stage = request.getfixturevalue(backend)
    result = settle(stage, FAULTS[fault](stage))
    check(result, None if fault.startswith("trainer") else "complete")


@pytest.mark.slow
def test_a_killed_trainer_loses_a_second_at_most(sqlite: Stage) -> None:
    training = sqlite.train("loses")
    training.until(600)
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    made = training.step + 1
    result = settle(sqlite, training)
    arrived = sum(count for (name, *_), count in result.found.items() if name == contract.TRAIN_LOSS)
    windows_of = 500 + (made - 500) // 2
    assert windows_of - arrived <= 1.0 / 0.003
    assert result.same


@pytest.mark.slow
def test_the_server_has_no_disk_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "database", 64) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        with staged("sqlite", tmp_path, steps=900) as stage:
            check(settle(stage, FAULTS["server's disk full"](stage)))


@pytest.mark.slow
def test_the_number_of_requests_is_sensible(sqlite: Stage) -> None:
    with sqlite.behind_proxy() as proxy:
        training: Training = sqlite.train("requests", proxy.uri)
        result = settle(sqlite, training)
        check(result)
        sent: Callable[[str], int] = lambda end: sum(n for path, n in proxy.requests.items() if path.endswith(end))  # noqa: E731
        assert sent("log-batch") <= 30, "a batch for every two seconds, NaN apart, and a few for tags"
        assert sum(proxy.requests.values()) <= 50
