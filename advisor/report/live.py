"""Serves a report on this machine only, and notifies an open page when a newer report is ready."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from advisor.model.message import Percent
from advisor.model.words import clean
from advisor.report.formats.html import render_live_page
from advisor.report.model import ReportData
from advisor.report.running import GUARD_STATE_LABELS

LOOPBACK_ADDRESS = "127.0.0.1"
"""The server listens only on this address, because reports may be confidential and the server has no authentication."""

MAX_CONNECTIONS = 64
"""Maximum number of open connections, each with a thread. One more connection closes the oldest connection."""
IDLE_TIMEOUT_S = 10.0
"""Seconds without any data transfer after which a connection is closed."""
WRITE_CHUNK_BYTES = 64 << 10
"""Bytes per write, which a browser must accept within `IDLE_TIMEOUT_S`; a whole report may take longer over a slow tunnel."""

MAX_STOPPED_TRIAL_ROWS = 50

_CONTENT_TYPES = {"/": "text/html", "/report.html": "text/html", "/state": "application/json"}


@dataclass(frozen=True, slots=True)
class LiveTrialRow:
    """A running or stopped trial as the page shows it. The page inserts all texts of a row as plain text, never as markup."""

    id: str
    name: str
    done: float | None
    progress: str
    state: str
    word: str
    message: str
    notes: tuple[str, ...]


def live_trial_rows(report: ReportData) -> tuple[LiveTrialRow, ...]:
    rows = []
    for t in report.running:
        progress = f"step {t.step:,}" if t.done is None else str(Percent(t.done))
        message, notes = clean(str(t.message)), tuple(clean(str(note)) for note in t.notes)
        rows.append(LiveTrialRow(t.id, clean(t.name), t.done, progress, t.state, GUARD_STATE_LABELS[t.state], message, notes))
    for s in report.stopped.each[:MAX_STOPPED_TRIAL_ROWS]:
        share = min(1.0, s.step / s.length) if s.length else None
        rows.append(LiveTrialRow(s.id, clean(s.name), share, f"step {s.step:,}", "stopped", "stopped", clean(s.reason), ()))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class LivePageState:
    version: int = 0
    at: str = ""
    changes: tuple[str, ...] = ()
    running: tuple[LiveTrialRow, ...] = ()
    summary: str = ""
    error: str | None = None
    """Reason why the latest analysis failed, or None if it succeeded. After a failure, the previous report stays visible."""


class _ReportServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS
    """With the default of 5, a browser that opens more connections at once would have to retry after a second."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[Any, None] = {}
        self._guard = Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            oldest = next(iter(self._open)) if len(self._open) >= MAX_CONNECTIONS else None
            self._open.pop(oldest, None)
            self._open[request] = None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # the connection's thread then reads the end of the stream and exits
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser breaks, for example because the user closes a tab."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LiveReport:
    """The HTTP server of a report. `with LiveReport(port) as live` runs the server until the block ends."""

    def __init__(self, port: int = 0) -> None:
        """Bind the server to `port`; 0 selects a free port. Raises OSError if the port is in use."""
        self._lock = Lock()
        self._state, self._page = LivePageState(), b""
        self._frame, self._policy = render_live_page()
        self._server = _ReportServer((LOOPBACK_ADDRESS, port), self._handler_class())

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK_ADDRESS}:{self._server.server_address[1]}/"

    def __enter__(self) -> LiveReport:
        Thread(target=self._server.serve_forever, name="advisor-live", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def show(
        self, page: str, at: str, changes: Sequence[str] = (), running: Sequence[LiveTrialRow] = (), summary: str = ""
    ) -> None:
        with self._lock:
            self._page = page.encode()
            self._state = LivePageState(self._state.version + 1, at, tuple(changes), tuple(running), summary)

    def fail(self, error: str | None) -> None:
        with self._lock:
            self._state = replace(self._state, error=error)

    def _response_body(self, path: str) -> bytes:
        with self._lock:
            if path == "/state":
                return json.dumps(asdict(self._state)).encode()
            return self._frame.encode() if path == "/" else self._page

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        report = self

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_TIMEOUT_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                # Reject requests for other host names: a web site could resolve its own name to this machine (DNS rebinding).
                if self.headers.get("Host", "").rpartition(":")[0] not in (LOOPBACK_ADDRESS, "localhost"):
                    self.send_error(HTTPStatus.FORBIDDEN)
                elif path not in _CONTENT_TYPES:
                    self.send_error(HTTPStatus.NOT_FOUND)
                else:
                    self._send_response(report._response_body(path), path)

            def _send_response(self, body: bytes, path: str) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{_CONTENT_TYPES[path]}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                if path == "/":
                    self.send_header("Content-Security-Policy", report._policy)
                self.end_headers()
                for start in range(0, len(body), WRITE_CHUNK_BYTES):
                    self.wfile.write(body[start : start + WRITE_CHUNK_BYTES])

            def log_message(self, format: str, *args: object) -> None:
                """Log no requests, because the terminal shows the changes between reports instead."""

        return Handler
