"""The shipper process as its trainer sees it: acquired for a run, idle after it, acquired again for the next one.

                         ┌──────────── acquire ◄───────────┐
    acquire ──► started ─┴► busy with a run ── release ──► idle
                                └────────── stop ───────────┴───► delivers the rest and exits

Importing MLflow and opening its store takes seconds of CPU, as long as a short run: only the first run pays for them. A process
with several simultaneous runs has a shipper for each. All of them exit with the trainer, and an idle one after `STANDBY_S`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, Self

import advisor
import advisor_logging
from advisor.contract.redact import one_line

STANDBY_S = 300.0
"""Seconds for which an idle shipper, which takes 200 MB or more, waits for the next run."""

# Our packages are imported first: later entries of the path cannot replace an imported package.
_BOOTSTRAP = """
import json, sys
lines = open(0, "rb", buffering=0)
trainer = json.loads(lines.readline())
for name, folder in trainer["packages"].items():
    sys.path.insert(0, folder)
    __import__(name)
    sys.path.remove(folder)
sys.path[:] = trainer["path"] + [p for p in sys.path if p not in trainer["path"] + trainer["path_last"]] + trainer["path_last"]
from advisor_logging.shipper import main
main(trainer, lines)
"""
_PACKAGES = {package.__name__: str(Path(package.__path__[0]).parent) for package in (advisor, advisor_logging)}
"""Folders of our packages in this process: the shipper must run the same version, whichever others are installed."""
# The shipper backs off by itself; MLflow's own seven retries would block it for minutes.
MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "GIT_PYTHON_REFRESH": "quiet",
}
_OVERRIDES = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "CUDA_VISIBLE_DEVICES": ""}
_RUN_VARIABLES = {"MLFLOW_RUN_ID", "ADVISOR_TRIAL", "ADVISOR_SEED", "ADVISOR_PARAMS"}
"""Variables that name the current run or trial. They change between runs of one shipper, which gets the run in its job."""


class ShipperSettings(NamedTuple):
    """Settings that a shipper inherits at its start. If any of them changes, a new shipper is needed."""

    tracking_uri: str
    environment: dict[str, str]
    """All variables except `_RUN_VARIABLES`: credentials, proxies and certificates have too many names to list."""
    cwd: str
    path: list[str]
    path_last: list[str]
    """Folders of the training script: an `mlflow.py` or `yaml.py` in them must not replace the library."""

    @classmethod
    def now(cls, tracking_uri: str) -> Self:
        """Return the settings of a process that would start now."""
        cwd, script = os.getcwd(), getattr(sys.modules.get("__main__"), "__file__", None)
        own = {os.path.realpath(cwd), os.path.dirname(os.path.realpath(script or "."))}
        path = [os.path.abspath(p) for p in sys.path if p]
        first = [p for p in path if os.path.realpath(p) not in own]
        environment = {name: text for name, text in os.environ.items() if name not in _RUN_VARIABLES}
        return cls(tracking_uri, environment, cwd, first, [p for p in path if p not in first])


class _Process(subprocess.Popen[str]):
    def __del__(self) -> None:
        """Do nothing: the process may outlive its trainer, so this is no leaked resource."""


class ShipperProcess:
    """One shipper, as seen by the process that started it."""

    def __init__(self, settings: ShipperSettings) -> None:
        """Start the process. Raises OSError if the system cannot."""
        self._settings = settings
        self._database: tuple[int, int] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - an unread pipe would block the shipper
        self._process = _Process(
            [sys.executable, "-P", "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C ends the training, but not the delivery of its points
            env={**MLFLOW_DEFAULTS, **settings.environment, **_OVERRIDES},
        )
        # Over a pipe: other users can read command lines, and the address may hold a password.
        self._send(
            {
                "process": os.getpid(),
                "tracking_uri": settings.tracking_uri,
                "packages": _PACKAGES,
                "path": settings.path,
                "path_last": settings.path_last,
                "standby_s": STANDBY_S,
            }
        )

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def exit_reason(self) -> str | None:
        """Return its exit status or signal and the last line of its standard error; None while it runs. Not after `stop`."""
        status = self._process.poll()
        if status is None:
            return None
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        cause = f"exit status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"
        return f"{cause}: {one_line(lines[-1])}" if lines else cause

    def deliver(self, folder: Path) -> None:
        """Send it the spool in `folder` as its next job. Raises OSError if it has exited."""
        script = Path(sys.argv[0] or ".").absolute().parent if sys.argv else Path.cwd()
        self._send({"folder": str(folder), "script_folder": str(script)})

    def release(self) -> None:
        """Make it available for the next run, after it has delivered the last one."""
        self._database = _file_identity(self._settings.tracking_uri)
        _idle.append(self)

    def fits(self, settings: ShipperSettings) -> bool:
        """Return whether this idle shipper can serve a run with these settings."""
        # It has the SQLite file open; if that was replaced or deleted, it would write to the old one.
        same_database = self._database == _file_identity(settings.tracking_uri)
        return self.is_alive() and self._settings == settings and same_database

    def stop(self) -> None:
        """Let it deliver what it still has, remove that spool, and exit."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            # An explicit message: the end of the pipe is not visible while a fork of the trainer has a copy of it.
            self._send(None)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._stderr.close()
        _stopped.append(self)

    def _send(self, line: object) -> None:
        print(json.dumps(line), file=self._process.stdin, flush=True)


_idle: list[ShipperProcess] = []
_stopped: list[ShipperProcess] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # they continue to work for the parent


@atexit.register
def _stop_idle() -> None:
    while (shipper := _pop_idle()) is not None:
        shipper.stop()


def acquire(tracking_uri: str, folder: Path) -> ShipperProcess:
    """Return a shipper that delivers the spool in `folder`: an idle one if one fits, else a new one. Raises OSError."""
    _stopped[:] = [one for one in _stopped if one.is_alive()]  # polling reaps exited processes
    settings = ShipperSettings.now(tracking_uri)
    while (shipper := _pop_idle()) is not None:
        if shipper.fits(settings):
            with contextlib.suppress(OSError):
                shipper.deliver(folder)
                return shipper
        shipper.stop()
    shipper = ShipperProcess(settings)
    shipper.deliver(folder)
    return shipper


def _pop_idle() -> ShipperProcess | None:
    try:
        return _idle.pop()  # atomic: other threads may acquire shippers too
    except IndexError:
        return None


def _file_identity(tracking_uri: str) -> tuple[int, int] | None:
    """Return device and inode of the file at an SQLite address; None if there is no such file."""
    path, _, _ = tracking_uri.removeprefix("sqlite:///").partition("?")
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
