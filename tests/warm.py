"""Starts Python processes of tests as forks of a process that has imported MLflow and PyTorch, which takes seconds.

Such a process has its own environment, arguments, folder and standard streams and is a child of this process, like any other.
What differs: its command line in `/proc`, and that modules are imported before its code runs. Where that could matter, a new
interpreter is started: with other options or variables of Python, or with a folder on the path that hides such a module. The
full tests (`make test-slow`) always start new interpreters.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import warm_python

PR_SET_CHILD_SUBREAPER = 36
HIDDEN = {"mlflow", "torch", "numpy", "advisor", "advisor_logging", "advisor_pytorch", "sitecustomize", "usercustomize"}
"""Modules that a folder on the path must not hide."""
_STARTUP = ("PYTHON", "LC_", "LANG", "OMP_", "MKL_", "LD_", "MALLOC")
"""Starts of names of variables that an interpreter or a library reads only once, when it starts."""
WORDS: dict[int, list[str]] = {}
"""Arguments of the started processes, by process id."""
_CHANGEABLE = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_execute_cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]


class WarmPython:
    """A process that waits for requests, and the processes that it has started."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        self.own = [str(Path(warm_python.__file__).parent), *self.environment.get("PYTHONPATH", "").split(os.pathsep)]
        words = [sys.executable, warm_python.__file__, str(theirs.fileno()), json.dumps(self.own)]
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=self.environment)
        theirs.close()
        self._own = {os.path.realpath(path) for path in self.own}
        self._connection = ours
        self._libc = ctypes.CDLL(None)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Return the id of a new child of this process."""
        body = json.dumps(request).encode()
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._connection.sendmsg([len(body).to_bytes(8, "big")], fds)
            self._connection.sendall(body)
            child = int.from_bytes(self._connection.recv(8, socket.MSG_WAITALL), "big")
        finally:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
        assert child, "the warm process has ended"
        WORDS[child] = request["words"]
        return child

    def request(self, words: Sequence[str], cwd: str | None, environment: dict[str, str]) -> dict[str, Any] | None:
        """Return a request for `words`, or None if a new interpreter must run them."""
        if words[0] != sys.executable or self._starts_otherwise(environment):
            return None
        rest = list(words[1:])
        safe = rest[:1] == ["-P"]
        rest = rest[safe:]
        if not rest or (rest[0].startswith("-") and rest[0] not in ("-c", "-m")):
            return None
        folder = os.path.abspath(cwd or ".")
        if rest[0] == "-m":
            kind, code, argv, first = "module", rest[1], ["-m", *rest[2:]], folder
        elif rest[0] == "-c":
            kind, code, argv, first = "code", rest[1], ["-c", *rest[2:]], ""
        else:
            kind, code, argv, first = "script", rest[0], rest, str(Path(folder, rest[0]).resolve().parent)
        listed = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        path = listed if safe else [first, *listed]
        if any(_hides(Path(folder, p)) for p in path if os.path.realpath(Path(folder, p)) not in self._own):
            return None
        return {
            "words": list(words),
            "kind": kind,
            "code": code,
            "argv": argv,
            "path": path,
            "cwd": folder,
            "environment": environment,
        }

    def _starts_otherwise(self, environment: dict[str, str]) -> bool:
        def fixed(variables: dict[str, str]) -> dict[str, str]:
            return {k: v for k, v in variables.items() if k.startswith(_STARTUP) and k not in _CHANGEABLE}

        return fixed(environment) != fixed(self.environment)


def _hides(folder: Path) -> bool:
    try:
        return any(entry.partition(".")[0] in HIDDEN for entry in os.listdir(folder))
    except OSError:
        return False


def execute_with(warm: WarmPython) -> Any:
    """Return a substitute for `subprocess.Popen._execute_child`."""

    def execute_child(
        popen: Any,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        *more: Any,
    ) -> None:
        shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = more[2:9]
        *ids, session, group = more[10:]
        plain = not (executable or preexec_fn or pass_fds or shell) and close_fds and group in (-1, None)
        request = None
        if plain and isinstance(args, list | tuple) and all(i in (None, -1) for i in ids):
            words = [os.fsdecode(word) for word in args]
            environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
            request = warm.request(words, None if cwd is None else os.fsdecode(cwd), environment)
        if request is None:
            _execute_cold(popen, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)
            return
        sys.audit("subprocess.Popen", args[0], args, cwd, env)
        request["new_session"] = bool(session)
        request["ignores_interrupts"] = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        streams = (p2cread, c2pwrite, errwrite)
        popen.pid = warm.start(request, [fd if fd != -1 else own for own, fd in enumerate(streams)])
        popen._child_created = True
        popen._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    return execute_child
