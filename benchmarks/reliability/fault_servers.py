"""Real servers that tests can make fail: a tracking server, PostgreSQL, MariaDB, and an HTTP proxy that injects faults."""

from __future__ import annotations

import contextlib
import http.client
import os
import pwd
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until the condition is true. Raises TimeoutError if the condition is still false after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


class TrackingServer:
    """`mlflow server` on a database, with artifacts in `folder`. workers: None for MLflow's default, four processes."""

    def __init__(self, database: str, folder: Path, workers: int | None = 1) -> None:
        self._database, self._folder, self._workers, self.port = database, folder, workers, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self._database]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", str(self._workers)] if self._workers else []
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self._folder / "server.log", "ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        self._process = started
        until(lambda: self.answers() or started.poll() is not None, 120, "the tracking server answers")
        if started.poll() is not None:
            raise RuntimeError((self._folder / "server.log").read_text()[-2000:])

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """Send a signal to the server process and its workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


class Postgres:
    """A new PostgreSQL server in a temporary folder; if the current user is root, the server runs as a different user."""

    @staticmethod
    def binaries() -> Path | None:
        """Return the folder of PostgreSQL's programs; None if PostgreSQL is not installed."""
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
        in_path = shutil.which("initdb")
        return versions[-1].parent if versions else Path(in_path).parent if in_path else None

    def __init__(self) -> None:
        binaries = self.binaries()
        assert binaries is not None
        # not in the caller's folder, which the server's user may be unable to enter
        self._binaries, self._data, self.port = binaries, Path(tempfile.mkdtemp(prefix="advisor-pg-")), free_port()
        self._as: list[str] = []
        if os.getuid() == 0:
            user = next(u for u in pwd.getpwall() if u.pw_name in ("postgres", "nobody"))
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self._data, user.pw_uid, user.pw_gid)
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "mlflow", "--no-sync", "-E", "UTF8")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", self.port, "-U", "mlflow", "mlflow")
        self.uri = f"postgresql+psycopg2://mlflow:pa55word@127.0.0.1:{self.port}/mlflow"

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self._data / "log", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        """Stop the server if it runs, and delete its data."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as, str(self._binaries / program), *map(str, arguments)]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class MariaDB:
    """A new MariaDB server in a temporary folder; if the current user is root, the server runs as a different user."""

    @staticmethod
    def server() -> str | None:
        """Return the path of MariaDB's server program; None if MariaDB is not installed."""
        return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

    def __init__(self) -> None:
        self._data, self.port = Path(tempfile.mkdtemp(prefix="advisor-mariadb-")), free_port()
        self._as: list[str] = []
        if os.getuid() == 0:
            user = next(u for u in pwd.getpwall() if u.pw_name in ("mysql", "nobody"))
            self._as = [f"--user={user.pw_name}"]
            os.chown(self._data, user.pw_uid, user.pw_gid)
        install = ["mariadb-install-db", "--no-defaults", *self._as, f"--datadir={self._data / 'data'}"]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # Temporary tables get a private folder: in a shared folder, a starting server deletes the tables of other servers.
        self._environment = {**os.environ, "TMPDIR": str(self._data)}
        done = subprocess.run(install, check=False, cwd="/", capture_output=True, text=True, env=self._environment)
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-4000:])
        self._init = self._data / "init.sql"
        self._init.write_text(
            "CREATE DATABASE IF NOT EXISTS mlflow;\n"
            "CREATE DATABASE IF NOT EXISTS other;\n"
            "CREATE USER IF NOT EXISTS mlflow@'%' IDENTIFIED BY 'pa55word';\n"
            "GRANT ALL ON *.* TO mlflow@'%' WITH GRANT OPTION;\n"
        )
        self._init.chmod(0o644)
        self.start()
        self.uri = f"mysql+pymysql://mlflow:pa55word@127.0.0.1:{self.port}/mlflow"

    def start(self) -> None:
        command = [str(self.server()), "--no-defaults", *self._as, f"--datadir={self._data / 'data'}"]
        command += [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self._data / 'socket'}"]
        command += [f"--init-file={self._init}", "--character-set-server=utf8mb4", "--skip-name-resolve"]
        command += ["--innodb-flush-method=nosync", f"--pid-file={self._data / 'pid'}"]
        self._process = subprocess.Popen(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._environment
        )
        until(lambda: self._answers() or self._process.poll() is not None, 120, "MariaDB answers")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return bool(connection.recv(1))  # the first byte of the server's greeting
        except OSError:
            return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def remove(self) -> None:
        """Stop the server if it runs, and delete its data."""
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)


FAULTS = ("500", "429", "reset", "slow", "500 after", "reset after")
"""Kinds of faults that the proxy injects. "after": the server handles the request, but the client gets no response."""
CUT = "truncated"
"""Kind of fault in which the response ends in the middle of its body."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: tests kill and reset clients on purpose."""


class FaultyProxy:
    """Forwards requests to a server and injects faults according to a seeded random schedule."""

    def __init__(
        self, upstream_port: int, share: float = 0.0, seed: int = 0, faults: Sequence[str] = FAULTS, only: str = ""
    ) -> None:
        """share: probability of a fault for each request whose path ends with `only`."""
        self.share, self._upstream, self._faults, self._only = share, upstream_port, faults, only
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.requests: Counter[str] = Counter()
        """Number of requests received, by path."""
        self.injected: Counter[str] = Counter()
        self.on_answer: Callable[[str], object] = str
        """Function called with the path of a request, after the server has responded and before the client gets the response."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                proxy._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the library's names

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _pick_fault(self, path: str) -> str:
        with self._lock:
            self.requests[path] += 1
            picked = path.endswith(self._only) and self._random.random() < self.share
            fault = self._random.choice(self._faults) if picked else ""
            if fault:
                self.injected[fault] += 1
            return fault

    def _serve(self, client: BaseHTTPRequestHandler) -> None:
        path = client.path.partition("?")[0]
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        fault = self._pick_fault(path)
        if fault == "slow":
            time.sleep(0.5)
        if fault == "reset":
            return _reset_connection(client)
        if fault in ("500", "429"):
            return _answer(client, int(fault), [], b"injected")
        try:
            status, headers, content = self._forward(client, body)
        except OSError:
            return _answer(client, 502, [], b"unreachable")
        self.on_answer(path)
        if fault == "500 after":
            return _answer(client, 500, [], b"injected")
        if fault == "reset after":
            return _reset_connection(client)
        return _answer(client, status, headers, content, truncated=fault == CUT)

    def _forward(self, client: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        with contextlib.closing(upstream):
            skip = ("host", "connection", "content-length", "accept-encoding")
            headers = {name: value for name, value in client.headers.items() if name.lower() not in skip}
            upstream.request(client.command, client.path, body, headers)
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()


def _answer(
    client: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes, *, truncated: bool = False
) -> None:
    with contextlib.suppress(OSError):
        client.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                client.send_header(name, value)
        client.send_header("Content-Length", str(len(content)))
        client.end_headers()
        client.wfile.write(content[: len(content) // 2] if truncated else content)
    if truncated:
        _reset_connection(client)


def _reset_connection(client: Any) -> None:
    client.close_connection = True
    with contextlib.suppress(OSError):
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.connection.close()
