"""The server of the live report."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from launches import wait_until

from advisor.model.message import Name, say
from advisor.model.words import clean
from advisor.report import Report
from advisor.report.live import LOOPBACK_ADDRESS, MAX_CONNECTIONS, LiveReport, live_trial_rows
from advisor.report.model import RunningTrial, StoppedTrial, StoppedTrials


@pytest.fixture
def live() -> Iterator[LiveReport]:
    with LiveReport() as running:
        yield running


def port_of(live: LiveReport) -> int:
    return int(live.url.rsplit(":", 1)[1].rstrip("/"))


def get(live: LiveReport, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(LOOPBACK_ADDRESS, port_of(live), timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_it_serves_the_latest_report_and_its_changes(live: LiveReport) -> None:
    live.show("<p>one</p>", "10:00:00")
    assert get(live, "/report.html?1")[:2] == (200, "<p>one</p>")
    live.show("<p>two ü</p>", "10:00:10", ["2 new trials"])
    assert get(live, "/report.html")[1] == "<p>two ü</p>"
    state = {"version": 2, "at": "10:00:10", "changes": ["2 new trials"], "running": [], "summary": "", "error": None}
    assert json.loads(get(live, "/state")[1]) == state
    live.fail("no such experiment")
    assert json.loads(get(live, "/state")[1]) == {**state, "error": "no such experiment"}


def test_it_serves_the_running_trials_as_plain_text(live: LiveReport, report: Report) -> None:
    trial = {"id": "r", "name": "a\x1b<b>\u202e", "state": "doomed", "step": 30, "length": 120.0, "stop": True}
    running = RunningTrial(**trial, message=say("{name} is far behind.", name=Name("<i>")), notes=("It waits.",))
    ended = StoppedTrial(id="s", name="c\x1b", step=60, length=120.0, reason="It lost\x1b.")
    stopped = StoppedTrials(trials=1, saved_steps=60, each=(ended,))
    made = report.model_copy(update={"running": (running, running.model_copy(update={"length": None})), "stopped": stopped})
    live.show("<p>one</p>", "10:00:00", (), live_trial_rows(made), "2 running trials.")
    state = json.loads(get(live, "/state")[1])
    first, second, third = state["running"]
    assert first == {
        "id": "r",
        "name": clean(trial["name"]),
        "done": 0.25,
        "progress": "25 %",
        "state": "doomed",
        "word": "doomed",
        "message": "<i> is far behind.",
        "notes": ["It waits."],
    }
    assert (second["done"], second["progress"]) == (None, "step 30")
    assert (third["state"], third["done"], third["progress"]) == ("stopped", 0.5, "step 60")
    assert (third["name"], third["message"]) == (clean(ended.name), clean(ended.reason))
    assert state["summary"] == "2 running trials."


def test_its_frame_may_only_request_this_server(live: LiveReport) -> None:
    status, page, headers = get(live, "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in page
    assert headers["Cache-Control"] == "no-store"


def test_it_listens_on_loopback_alone_and_answers_to_no_other_name(live: LiveReport) -> None:
    assert live._server.server_address[0] == "127.0.0.1"
    assert get(live, "/report.html", host="evil.example:80")[0] == 403
    assert get(live, "/report.html", host="localhost:1")[0] == 200
    assert get(live, "/../../etc/passwd")[0] == 404
    assert get(live, "/", method="POST")[0] == 501


def test_a_taken_port_is_an_error_and_a_closed_server_frees_it() -> None:
    with LiveReport() as first:
        port = port_of(first)
        with pytest.raises(OSError, match="in use"):
            LiveReport(port)
    with socket.socket() as again:
        assert again.connect_ex((LOOPBACK_ADDRESS, port)) != 0


def connected(live: LiveReport) -> socket.socket:
    return socket.create_connection((LOOPBACK_ADDRESS, port_of(live)), timeout=10)


def test_a_browser_that_leaves_is_not_reported(live: LiveReport, capfd: pytest.CaptureFixture[str]) -> None:
    live.show("<p>x</p>" * 2_000_000, "10:00:00")
    for _ in range(20):
        leaving = connected(live)
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset instead of a clean end
        leaving.sendall(b"GET /report.html HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
        leaving.close()
    assert get(live, "/state")[0] == 200
    wait_until(lambda: not live._server._open, 10)
    assert capfd.readouterr().err == ""


def test_half_open_connections_are_bounded_and_lock_nobody_out(live: LiveReport) -> None:
    live._server.RequestHandlerClass.timeout = 120.0  # so that the timeout closes none
    before = threading.active_count()
    idle = [connected(live) for _ in range(5 * MAX_CONNECTIONS)]
    assert get(live, "/state")[0] == 200
    wait_until(lambda: threading.active_count() - before <= MAX_CONNECTIONS + 2, 20)
    for connection in idle:
        connection.close()


def test_a_silent_connection_is_closed(live: LiveReport) -> None:
    live._server.RequestHandlerClass.timeout = 0.2
    with connected(live) as silent:
        silent.sendall(b"GET / HT")
        assert silent.recv(1) == b""


def asking(live: LiveReport) -> socket.socket:
    """Ask for a large report with a small buffer, like a slow line."""
    live._server.RequestHandlerClass.timeout = 1.0
    live.show("x" * 12_000_000, "10:00:00")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    slow.settimeout(20)
    slow.connect((LOOPBACK_ADDRESS, port_of(live)))
    slow.sendall(b"GET /report.html HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
    return slow


def test_a_slow_line_gets_the_whole_report(live: LiveReport) -> None:
    received = 0
    with asking(live) as slow:
        while part := slow.recv(1 << 16):
            received += len(part)
            time.sleep(0.02)
    assert received > 12_000_000


def test_a_reader_that_stops_is_closed(live: LiveReport) -> None:
    with asking(live):
        wait_until(lambda: bool(live._server._open), 20)
        wait_until(lambda: not live._server._open, 20)
    assert get(live, "/state")[0] == 200
