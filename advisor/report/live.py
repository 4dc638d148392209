"""Serves a report to this machine alone, and tells an open page when there is a newer one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from advisor.report.formats.html import render_live

ADDRESS = "127.0.0.1"
"""Loopback only: a report may hold what others are not to see, and nobody has to sign in."""

_TYPES = {"/": "text/html", "/report.html": "text/html", "/state": "application/json"}


@dataclass(frozen=True, slots=True)
class State:
    """What the open page asks for every few seconds."""

    version: int = 0
    """Counts the reports."""
    at: str = ""
    """When the report was made, as the reader's clock has it."""
    changes: tuple[str, ...] = ()
    """What the latest report says that the one before did not."""
    error: str | None = None
    """Why the latest analysis failed; the report of the one before stays."""


class LiveReport:
    """The server; `with LiveReport(port) as live` runs it until the block ends."""

    def __init__(self, port: int = 0) -> None:
        """port: 0 takes a free one. Raises OSError where the port is taken."""
        self._lock = Lock()
        self._state, self._page = State(), b""
        self._frame, self._policy = render_live()
        self._server = ThreadingHTTPServer((ADDRESS, port), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self._server.server_address[1]}/"

    def __enter__(self) -> LiveReport:
        Thread(target=self._server.serve_forever, name="advisor-live", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def show(self, page: str, at: str, changes: Sequence[str] = ()) -> None:
        """Serve this page from now on."""
        with self._lock:
            self._page = page.encode()
            self._state = State(self._state.version + 1, at, tuple(changes))

    def fail(self, error: str | None) -> None:
        """Tell the reader that an analysis failed; None takes that back."""
        with self._lock:
            self._state = replace(self._state, error=error)

    def _answer(self, path: str) -> bytes:
        with self._lock:
            if path == "/state":
                s = self._state
                told = {"version": s.version, "at": s.at, "changes": s.changes, "error": s.error}
                return json.dumps(told).encode()
            return self._frame.encode() if path == "/" else self._page

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                # A page of another site that resolves its name to this machine asks under that name.
                if self.headers.get("Host", "").rpartition(":")[0] not in (ADDRESS, "localhost"):
                    self.send_error(HTTPStatus.FORBIDDEN)
                elif path not in _TYPES:
                    self.send_error(HTTPStatus.NOT_FOUND)
                else:
                    self._send(live._answer(path), path)

            def _send(self, body: bytes, path: str) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{_TYPES[path]}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                if path == "/":
                    self.send_header("Content-Security-Policy", live._policy)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the terminal is for what changes."""

        return Handler
