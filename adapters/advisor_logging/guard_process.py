"""Judges a run while it is training: the process `advisor guard` writes its verdicts to a file, which the writer thread reads.

The process has low priority, so it does not slow down training, and judges only points that are in the store.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any, Literal

from advisor.contract.guard_file import GuardVerdict, read_verdict
from advisor.contract.redact import one_line_error
from advisor_logging.shipper_process import HelperProcess, ShipperSettings

GuardMode = Literal["warn", "stop"]
GUARD_FILE_NAME = "guard.json"
"""Name of the file in the spool folder to which the guard process writes its verdicts."""
MAX_TERMINATION_WAIT_S = 1.0
"""Maximum seconds to wait until a terminated process has exited."""
_SINGLE_THREAD_VARIABLES = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Guard:
    """Starts the guard process of a run once the objective has a value, and keeps the latest verdict of that process."""

    def __init__(
        self,
        mode: GuardMode | None,
        world_size: Callable[[], int],
        is_evaluated: Callable[[], bool],
        warn: Callable[[str, str], None],
    ) -> None:
        """is_evaluated: returns whether the objective has a value. warn: logs a warning in one line, once per key."""
        self._mode, self._world_size, self._is_evaluated, self._warn = mode, world_size, is_evaluated, warn
        self.verdict: GuardVerdict | None = None
        self.should_stop = False
        self._process: GuardProcess | None = None
        self._seen: tuple[int, int] | None = None
        self._ended = False
        self._may_stop()  # in a training with several ranks, this logs a warning immediately

    def poll(self, folder: Path, tracking_uri: str, status: Mapping[str, Any]) -> None:
        """Start the guard process if it can run, or read its new verdict; the writer thread calls this about once per second.

        status: content of the shipper's `status.json`, which contains the id of the MLflow run once the run exists.
        """
        if self._ended:
            return
        if self._process is None:
            if "experiment_id" in status and self._is_evaluated():
                self._start(folder, tracking_uri, status)
            return
        if reason := self._process.exit_reason():
            self._ended = True
            self._warn("guard ended", f"the guard ended with {reason}; training continues without it")
            return
        with contextlib.suppress(OSError):  # the guard has not written a verdict yet
            file_stat = os.stat(folder / GUARD_FILE_NAME)
            file_version = file_stat.st_ino, file_stat.st_mtime_ns
            if file_version != self._seen and (verdict := read_verdict(folder / GUARD_FILE_NAME)) is not None:
                self._seen = file_version
                self.on_verdict(verdict)

    def on_verdict(self, verdict: GuardVerdict) -> None:
        if self.should_stop:
            return  # keep the verdict that stopped the training, because its reason is recorded at the end of the run
        self.verdict = verdict
        must_stop = verdict["stop"] and self._may_stop()
        if verdict["state"] not in ("fine", "unknown"):
            self._warn(f"guard {verdict['state']}", verdict["message"] + " The training should stop." * must_stop)
        self.should_stop = must_stop

    def stop(self) -> None:
        self._ended = True
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _may_stop(self) -> bool:
        """Return False in a training with several ranks, because the other ranks would hang if one rank stopped alone."""
        if self._mode == "stop" and self._world_size() > 1:
            text = "with several ranks, guard='stop' only warns: all ranks would have to stop at the same step"
            self._warn("guard ranks", text)
            return False
        return self._mode == "stop"

    def _start(self, folder: Path, tracking_uri: str, status: Mapping[str, Any]) -> None:
        options = ["--watch", str(folder / GUARD_FILE_NAME), "--run", str(status["run_id"])]
        try:
            self._process = GuardProcess(tracking_uri, ["guard", str(status["experiment_id"]), *options])
        except OSError as error:
            self._ended = True
            text = f"the guard could not be started ({one_line_error(error)}); training continues without it"
            self._warn("guard ended", text)


class GuardProcess(HelperProcess):
    """Handle of an `advisor guard` process."""

    def __init__(self, tracking_uri: str, arguments: list[str]) -> None:
        super().__init__("guard_process", ShipperSettings.from_this_process(tracking_uri), {"arguments": arguments})

    def stop(self) -> None:
        """Kill the guard process, which is safe because it only reads the store."""
        self._process.terminate()
        try:
            self._process.wait(MAX_TERMINATION_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._stderr.close()


def main(trainer: Mapping[str, Any], _lines: RawIOBase) -> None:
    """Run `advisor guard` in this process until the run ends or the training process exits."""
    if hasattr(os, "nice"):
        os.nice(10)
    # The store's address is not passed on the command line: it can contain a password, and other users can read command lines.
    os.environ.update({**_SINGLE_THREAD_VARIABLES, "MLFLOW_TRACKING_URI": trainer["tracking_uri"]})
    from advisor.cli.main import main as run_command  # a slow import, which the training process does not need

    run_command(trainer["arguments"])
