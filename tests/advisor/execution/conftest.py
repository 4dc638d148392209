"""A store, and a process that logs for trainings, so that each of them need not import MLflow, which takes seconds."""

import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from launches import TRAINING, wait_until

LOG = '''
import json, os, socket

def log(value=None, step=0, end=None):
    """Log a value of the objective into this training's run, or end it, through a process that has MLflow imported."""
    with socket.create_connection(("127.0.0.1", int(os.environ["LOGS_FOR_ME"]))) as line, line.makefile("rw") as file:
        file.write(json.dumps([os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_RUN_ID"], value, step, end]) + "\\n")
        file.flush()
        file.readline()
'''


@pytest.fixture
def project(tmp_path, empty_store, monkeypatch):
    """A working directory with a store in it and with an unusual name."""
    own = tmp_path / "my prøject"
    own.mkdir()
    shutil.copy(empty_store, own / "mlflow.db")
    monkeypatch.chdir(own)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return own


@pytest.fixture
def logs(project, monkeypatch):
    """Log for trainings that import `log` from `quick`."""
    from mlflow.tracking import MlflowClient

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            uri, run_id, value, step, end = json.loads(self.rfile.readline())
            client = MlflowClient(uri)
            if value is not None:
                client.log_metric(run_id, "val/loss", value, step=step)
            if end is not None:
                client.set_terminated(run_id, end)
            self.wfile.write(b"done\n")

    (project / "quick.py").write_text(LOG)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        monkeypatch.setenv("LOGS_FOR_ME", str(server.server_address[1]))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield
        server.shutdown()


@pytest.fixture
def training(project, logs):
    (project / "train.py").write_text(TRAINING)
    return project


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy of a server. It can be cut and restored at once, while starting a server takes seconds."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, target, port=0):
        self.target, self.lines = target, []
        super().__init__(("127.0.0.1", port), socketserver.BaseRequestHandler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def finish_request(self, request, client_address):
        with socket.create_connection(("127.0.0.1", self.target)) as there:
            self.lines += [request, there]
            back = threading.Thread(target=_carry, args=(there, request), daemon=True)
            back.start()
            _carry(request, there)
            back.join()

    def cut(self):
        self.shutdown()
        self.server_close()
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def restored(self):
        """Return a new proxy on the same port."""
        return Proxy(self.target, self.port)


def _carry(one, other):
    with suppress(OSError):
        while piece := one.recv(65536):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(project):
    """A proxy of a tracking server on the project's store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["server", "--backend-store-uri", "sqlite:///mlflow.db", "--port", str(port), "--workers", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words], start_new_session=True, env=environment, **quiet
    )
    wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
    yield Proxy(port)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
