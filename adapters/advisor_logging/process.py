"""The shipper process as its trainer holds it: hired for a run, idle after it, hired again for the next one.

                      ┌───────────── hire ◄────────────┐
    hire ──► started ─┴► busy with a run ── keep ──► idle
                                └─────── dismiss ──────┴─────► delivers what it still has, and ends

Importing MLflow and opening its store takes seconds of CPU, as long as many a short run: only the first run pays them. A process
that makes several runs at once has a shipper for each. All of them end when the trainer does, and an idle one after
`STANDBY_S`.
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
"""How long an idle shipper, with its 200 MB and more, waits for the next run before it ends."""

# A package that is imported stays the one it is, whatever the path says later about its name.
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
"""Where this process has our packages from: the shipper must be of the same version, whichever others are installed."""
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "CUDA_VISIBLE_DEVICES": ""}
# The shipper backs off by itself; MLflow's own seven retries would keep it blind for minutes.
_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "GIT_PYTHON_REFRESH": "quiet"}
_OF_ONE_RUN = {"MLFLOW_RUN_ID", "ADVISOR_TRIAL", "ADVISOR_SEED", "ADVISOR_PARAMS"}
"""Variables that say which run or trial is trained just now: the shipper is told the run, and goes on with the next."""


class Surroundings(NamedTuple):
    """What a shipper has from its trainer for good. Where any of it has changed, another one is needed."""

    tracking_uri: str
    environment: dict[str, str]
    """All of it but `_OF_ONE_RUN`: credentials, proxies and certificates go by too many names to list."""
    cwd: str
    path: list[str]
    path_last: list[str]
    """The folders of the training script: an `mlflow.py` or `yaml.py` in them is not what the shipper means by that name."""

    @classmethod
    def now(cls, tracking_uri: str) -> Self:
        """Those of a process that would be started at this moment."""
        cwd, script = os.getcwd(), getattr(sys.modules.get("__main__"), "__file__", None)
        own = {os.path.realpath(cwd), os.path.dirname(os.path.realpath(script or "."))}
        path = [os.path.abspath(p) for p in sys.path if p]
        first = [p for p in path if os.path.realpath(p) not in own]
        environment = {name: text for name, text in os.environ.items() if name not in _OF_ONE_RUN}
        return cls(tracking_uri, environment, cwd, first, [p for p in path if p not in first])


class _Process(subprocess.Popen[str]):
    def __del__(self) -> None:
        """Nothing: it may outlive its trainer, which is no resource left open."""


class ShipperProcess:
    """One shipper, in the process that started it."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Start it. Raises OSError when the system gives no process."""
        self._surroundings = surroundings
        self._database: tuple[int, int] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would block it
        self._process = _Process(
            [sys.executable, "-P", "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            text=True,
            start_new_session=True,  # Ctrl-C ends the training, not the delivery of what it wrote
            env={**_DEFAULTS, **surroundings.environment, **_QUIET},
        )
        # Over a pipe, since others can read command lines, and the address may hold a password.
        self._say(
            {
                "process": os.getpid(),
                "tracking_uri": surroundings.tracking_uri,
                "packages": _PACKAGES,
                "path": surroundings.path,
                "path_last": surroundings.path_last,
                "standby_s": STANDBY_S,
            }
        )

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def ended_with(self) -> str | None:
        """Its exit status or signal and the last line of its standard error, None while it runs. Not for a dismissed one."""
        status = self._process.poll()
        if status is None:
            return None
        self._words.seek(0)
        lines = [line for line in self._words.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"exit status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"
        return f"{how}: {one_line(lines[-1])}" if lines else how

    def deliver(self, folder: Path) -> None:
        """Give it the spool in `folder`. Raises OSError when it has ended."""
        script = Path(sys.argv[0] or ".").absolute().parent if sys.argv else Path.cwd()
        self._say({"folder": str(folder), "script_folder": str(script)})

    def keep(self) -> None:
        """Hold it ready for the next run, now that it has delivered the last one."""
        self._database = _identity(self._surroundings.tracking_uri)
        _idle.append(self)

    def fits(self, surroundings: Surroundings) -> bool:
        """Whether it, idle, can serve a run with these."""
        # It has the database open: one that has been put in its place, or deleted, is not what it would write to.
        same_database = self._database == _identity(surroundings.tracking_uri)
        return self.is_alive() and self._surroundings == surroundings and same_database

    def dismiss(self) -> None:
        """Want no more of it: it delivers what it still has, removes that spool and ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            # Said in words: the pipe's end is not seen as long as a fork of the trainer has a copy of it.
            self._say(None)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._words.close()
        _dismissed.append(self)

    def _say(self, line: object) -> None:
        print(json.dumps(line), file=self._process.stdin, flush=True)


_idle: list[ShipperProcess] = []
_dismissed: list[ShipperProcess] = []
os.register_at_fork(after_in_child=_idle.clear)  # they go on working for the parent


@atexit.register
def _dismiss_idle() -> None:
    while (shipper := _pop_idle()) is not None:
        shipper.dismiss()


def hire(tracking_uri: str, folder: Path) -> ShipperProcess:
    """A shipper that delivers the spool in `folder`: an idle one that fits, else a new one. Raises OSError."""
    _dismissed[:] = [one for one in _dismissed if one.is_alive()]  # asking is what frees an ended process
    surroundings = Surroundings.now(tracking_uri)
    while (shipper := _pop_idle()) is not None:
        if shipper.fits(surroundings):
            with contextlib.suppress(OSError):
                shipper.deliver(folder)
                return shipper
        shipper.dismiss()
    shipper = ShipperProcess(surroundings)
    shipper.deliver(folder)
    return shipper


def _pop_idle() -> ShipperProcess | None:
    try:
        return _idle.pop()  # in one stroke: other threads may be hiring too
    except IndexError:
        return None


def _identity(tracking_uri: str) -> tuple[int, int] | None:
    """Which file an SQLite address leads to just now; None where it leads to none."""
    path, _, _ = tracking_uri.removeprefix("sqlite:///").partition("?")
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
