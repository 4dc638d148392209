"""Servers that fail while they are read: the whole study or one clear line."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Refused
from fault_servers import CUT, FaultyProxy, TrackingServer

from advisor.tracking.stores import client
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("reading")  # one server
needs_server = pytest.mark.skipif(
    importlib.util.find_spec("flask") is None, reason='needs MLflow\'s server: pip install "tuning-advisor[ui]"'
)
HISTORIES = "get-history-bulk"


@pytest.fixture(scope="module")
def shared_server(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(studied, folder / "mlflow.db")
    server = TrackingServer(f"sqlite:///{folder / 'mlflow.db'}", folder)
    yield server
    server.kill()


@pytest.fixture
def server(shared_server: TrackingServer) -> TrackingServer:
    """A running server. It is started again if the last test killed it."""
    if not shared_server.answers():
        shared_server.start()
    return shared_server


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated at once; users' are repeated after up to 8 seconds."""
    monkeypatch.setitem(client.LATER_REQUEST_SETTINGS, "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


def points(uri: str) -> dict[str, Counter[tuple[int, int, float]]]:
    found = read_experiment("e", tracking_uri=uri).points
    return {
        metric: Counter(zip(p.runs.tolist(), p.steps.tolist(), p.values.tolist(), strict=True)) for metric, p in found.items()
    }


@needs_server
def test_answers_that_fail_are_asked_for_again(server: TrackingServer, studied: Path) -> None:
    faults = ("500", "429", "reset", "500 after", "reset after")
    proxy = FaultyProxy(server.port, share=0.25, seed=1, faults=faults, only=HISTORIES)
    assert points(proxy.uri) == points(f"sqlite:///{studied}")
    assert proxy.injected.total() > 0
    proxy.close()


@needs_server
@pytest.mark.usefixtures("no_pauses")
def test_an_answer_that_breaks_off_is_no_whole_one(server: TrackingServer, studied: Path, refused: Refused) -> None:
    proxy = FaultyProxy(server.port, share=1.0, faults=(CUT,), only=HISTORIES)
    said = refused("analyze", "e", "--tracking-uri", proxy.uri)
    assert f"cannot reach {proxy.uri}" in said
    assert not Path("advisor-report").exists()
    proxy.close()


@needs_server
@pytest.mark.usefixtures("no_pauses")
def test_a_server_that_dies_in_mid_read(server: TrackingServer, refused: Refused) -> None:
    proxy = FaultyProxy(server.port)
    proxy.on_answer = lambda path: server.kill() if path.endswith(HISTORIES) else None
    assert "cannot reach" in refused("analyze", "e", "--tracking-uri", proxy.uri)
    assert not Path("advisor-report").exists()
    proxy.close()


@pytest.mark.slow
@needs_server
def test_a_server_that_is_back_within_seconds(server: TrackingServer, studied: Path) -> None:
    proxy = FaultyProxy(server.port)
    once = threading.Lock()

    def restart(path: str) -> None:
        if path.endswith(HISTORIES) and once.acquire(blocking=False):
            server.kill()
            threading.Thread(target=server.start).start()

    proxy.on_answer = restart
    assert points(proxy.uri) == points(f"sqlite:///{studied}")
    proxy.close()


@pytest.mark.slow
@needs_server
def test_a_server_that_hangs(server: TrackingServer, refused: Refused) -> None:
    proxy = FaultyProxy(server.port)
    proxy.on_answer = lambda path: server.signal(signal.SIGSTOP) if path.endswith("search") else None
    began = time.monotonic()
    try:
        assert "cannot reach" in refused("analyze", "e", "--tracking-uri", proxy.uri)
    finally:
        server.signal(signal.SIGCONT)
    assert time.monotonic() - began < 240
    assert not Path("advisor-report").exists()
    proxy.close()
