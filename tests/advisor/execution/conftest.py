"""A training that waits for a file, and a proxy of a tracking server."""

import socket
import socketserver
import threading
from contextlib import suppress

import pytest
from launches import TRAINING


@pytest.fixture
def training(project, logs):
    (project / "train.py").write_text(TRAINING)
    return project


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy of a server, which can be cut and restored at once, whereas starting a server takes seconds."""

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
def proxy(serve, empty_store):
    """A proxy of a tracking server on an empty store."""
    return Proxy(int(serve(empty_store).address.rpartition(":")[2]))
