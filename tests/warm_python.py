"""Runs as a script: imports what Python processes of tests need, and forks a process for each request. See `warm.py`."""

from __future__ import annotations

import array
import gc
import json
import os
import random
import runpy
import signal
import socket
import sys
import tempfile
import types
from typing import Any

MODULES = (
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "torch",
    "advisor.contract",
)
"""Imported before the first fork. They start no thread that a fork would lose."""


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its three standard streams; None if the connection was closed."""
    fds = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * fds.itemsize))
    if len(data) < 8:
        return None
    for _, _, content in ancillary:
        fds.frombytes(content)
    rest = bytearray()
    size = int.from_bytes(data, "big")
    while len(rest) < size:
        rest += connection.recv(size - len(rest))
    return json.loads(rest), list(fds)


def fork_for(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests with the id of a new process; return the request in that process, and None at the end in this one.

    The process between is there to end at once, so that the new process becomes a child of the process that asks.
    """
    while (received := receive(connection)) is not None:
        request, fds = received
        read, write = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if child := os.fork():
                os.write(write, child.to_bytes(8, "big"))
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()
            for stream, fd in enumerate(fds):
                os.dup2(fd, stream)
            os.closerange(3, max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1)
            return request
        os.close(write)
        child = int.from_bytes(os.read(read, 8), "big")
        os.waitpid(between, 0)
        for fd in (read, *fds):
            os.close(fd)
        connection.sendall(child.to_bytes(8, "big"))
    return None


def become(request: dict[str, Any]) -> None:
    """Change what a new interpreter would have changed."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if not request["ignores_interrupts"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = request["path"] + [path for path in sys.path if path not in OWN]
    sys.argv[:] = request["argv"]
    sys.orig_argv[:] = request["words"]
    unbuffered = bool(request["environment"].get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    if unbuffered:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.stderr = open(2, "w", encoding=sys.stderr.encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)  # type: ignore[union-attr]
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    tempfile.tempdir = None
    random.seed()
    import numpy as np

    np.random.seed()


def run(request: dict[str, Any]) -> None:
    """Run a script, a module or code as `__main__`."""
    if request["kind"] == "module":
        runpy._run_module_as_main(request["code"])  # type: ignore[attr-defined]
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    name = "<string>"
    code = request["code"]
    if request["kind"] == "script":
        main.__file__ = name = code
        with open(code, "rb") as file:
            code = file.read()
    main.__dict__["__builtins__"] = __builtins__
    exec(compile(code, name, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    OWN = set(json.loads(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
        __import__(module)
    gc.freeze()  # so that no fork copies or collects what was imported
    with socket.socket(fileno=int(sys.argv[1])) as server:
        asked = fork_for(server)
        if asked is not None:
            server.detach()
    if asked is not None:
        become(asked)
        run(asked)
