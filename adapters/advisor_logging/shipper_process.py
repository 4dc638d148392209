"""Starts shipper processes, which deliver data to MLflow, and reuses idle ones.

                         ┌──────────── acquire ◄───────────┐
    acquire ──► started ─┴► busy with a run ── release ──► idle
                                └────────── stop ───────────┴───► delivers the rest and exits

Reuse saves the seconds that importing MLflow and opening its store take. Simultaneous runs have separate processes. All
shipper processes exit after the training process; an idle one exits after `SHIPPER_STANDBY_S` seconds.
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
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

import advisor
import advisor_logging
from advisor.contract.redact import one_line_error
from advisor_logging.spool import working_directory

SHIPPER_STANDBY_S = 300.0
"""Seconds for which an idle shipper process waits for the next run; it uses at least 200 MB of memory while it waits."""

# Our packages are imported first, so that later entries of `sys.path` cannot hide them.
_BOOTSTRAP_CODE = """
import json, sys
lines = open(0, "rb", buffering=0)
trainer = json.loads(lines.readline())
for name, folder in trainer["packages"].items():
    sys.path.insert(0, folder)
    __import__(name)
    sys.path.remove(folder)
sys.path[:] = trainer["path"] + [p for p in sys.path if p not in trainer["path"] + trainer["path_last"]] + trainer["path_last"]
from advisor_logging.{module} import main
main(trainer, lines)
"""
_PACKAGE_FOLDERS = {package.__name__: str(Path(package.__path__[0]).parent) for package in (advisor, advisor_logging)}
"""Folder from which this process imported each of our packages; helper processes import them from the same folder."""
# Helper processes retry failed requests themselves; MLflow's own seven retries would block these processes for minutes.
MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "GIT_PYTHON_REFRESH": "quiet",
}
_FORCED_VARIABLES = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "CUDA_VISIBLE_DEVICES": ""}
_PER_RUN_VARIABLES = {
    "ADVISOR_PARAMS",
    "ADVISOR_SEED",
    "ADVISOR_TRIAL",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_RUN_ID",
    "MLFLOW_TRACKING_URI",
}
"""Environment variables that name the store, the experiment, the run or the trial. Only the training process reads them, so their
values may differ between runs that use the same shipper process."""


class ShipperSettings(NamedTuple):
    """Settings that a shipper process inherits when it starts. A run with different settings requires a new process."""

    tracking_uri: str
    environment: dict[str, str]
    """All environment variables except `_PER_RUN_VARIABLES`, because any variable may affect the connection to the store."""
    cwd: str
    import_path: list[str]
    script_import_path: list[str]
    """Folders of the training script come last, because the user's own `mlflow.py` would hide the library MLflow."""

    @classmethod
    def from_this_process(cls, tracking_uri: str) -> Self:
        cwd, script = working_directory(), getattr(sys.modules.get("__main__"), "__file__", None)
        script_folders = {os.path.realpath(cwd), os.path.dirname(os.path.realpath(os.path.join(cwd, script or ".")))}
        path = [os.path.normpath(os.path.join(cwd, p)) for p in sys.path if p]
        library_path = [p for p in path if os.path.realpath(p) not in script_folders]
        environment = {name: text for name, text in os.environ.items() if name not in _PER_RUN_VARIABLES}
        return cls(tracking_uri, environment, cwd, library_path, [p for p in path if p not in library_path])


class _OutlivingProcess(subprocess.Popen[str]):
    def __del__(self) -> None:
        """Suppress Python's ResourceWarning: a helper process may outlive the training process."""


class HelperProcess:
    """Handle of a background process that this process started."""

    def __init__(self, module: str, settings: ShipperSettings, details: Mapping[str, object]) -> None:
        """Call `main` of a module of this package in a new process, with `details` as further entries. Raises OSError."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - a file, because an unread pipe would block the process
        self._process = _OutlivingProcess(
            [sys.executable, "-P", "-c", _BOOTSTRAP_CODE.format(module=module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C must end the training but not the delivery of its data
            env={**MLFLOW_DEFAULTS, **settings.environment, **_FORCED_VARIABLES},
        )
        # The settings are sent through a pipe, because the store's address can contain a password and other users can read
        # command lines.
        self._send_line(
            {
                "process": os.getpid(),
                "tracking_uri": settings.tracking_uri,
                "packages": _PACKAGE_FOLDERS,
                "path": settings.import_path,
                "path_last": settings.script_import_path,
                **details,
            }
        )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def exit_reason(self) -> str | None:
        """Return the exit status and the last line on standard error; None while the process runs. Do not call after `stop`."""
        status = self._process.poll()
        if status is None:
            return None
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        cause = f"exit status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"
        return f"{cause}: {one_line_error(lines[-1])}" if lines else cause

    def _send_line(self, line: object) -> None:
        print(json.dumps(line), file=self._process.stdin, flush=True)


class ShipperProcess(HelperProcess):
    def __init__(self, settings: ShipperSettings) -> None:
        super().__init__("shipper", settings, {"standby_s": SHIPPER_STANDBY_S})
        self._settings = settings
        self._database: tuple[int, int] | None = None

    def deliver(self, folder: Path) -> None:
        """Raises OSError if the shipper process has exited."""
        script_path = Path(working_directory(), (getattr(sys, "argv", ()) or ["."])[0] or ".")
        self._send_line({"folder": str(folder), "script_folder": str(script_path.parent)})

    def release(self) -> None:
        self._database = _sqlite_file_identity(self._settings.tracking_uri)
        _idle_shippers.append(self)

    def can_serve(self, settings: ShipperSettings) -> bool:
        # If someone replaced or deleted the SQLite file, a shipper process that has the old file open would still write to the
        # old file.
        same_database = self._database == _sqlite_file_identity(settings.tracking_uri)
        return self.is_alive() and self._settings == settings and same_database

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            # Closing the pipe is not enough, because a forked child of the training process may hold a copy of it.
            self._send_line(None)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._stderr.close()
        _stopped_shippers.append(self)


_idle_shippers: list[ShipperProcess] = []
_stopped_shippers: list[ShipperProcess] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle_shippers.clear)  # in a forked child, idle shippers still belong to the parent


@atexit.register
def _stop_idle_shippers() -> None:
    while (shipper := _pop_idle_shipper()) is not None:
        shipper.stop()


def acquire_shipper(tracking_uri: str, folder: Path) -> ShipperProcess:
    """Return an idle process with the same settings, or a new process, that delivers the spool. Raises OSError."""
    _stopped_shippers[:] = [one for one in _stopped_shippers if one.is_alive()]  # polling reaps a child process that has exited
    settings = ShipperSettings.from_this_process(tracking_uri)
    while (shipper := _pop_idle_shipper()) is not None:
        if shipper.can_serve(settings):
            with contextlib.suppress(OSError):
                shipper.deliver(folder)
                return shipper
        shipper.stop()
    shipper = ShipperProcess(settings)
    shipper.deliver(folder)
    return shipper


def _pop_idle_shipper() -> ShipperProcess | None:
    try:
        return _idle_shippers.pop()  # `pop` is atomic, so several threads can acquire shipper processes at the same time
    except IndexError:
        return None


def _sqlite_file_identity(tracking_uri: str) -> tuple[int, int] | None:
    """Return (device, inode) of the SQLite file; None if the file does not exist."""
    path, _, _ = tracking_uri.removeprefix("sqlite:///").partition("?")
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
