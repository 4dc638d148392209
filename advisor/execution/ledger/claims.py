"""Manages claims. A claim is a tag of an MLflow run. It names the launcher that trains the run, and the time of the launcher's
latest heartbeat."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from advisor.execution.engines.slurm import SlurmQueue
from advisor.system.processes import KILL_SIGNAL, signal_process_group

HEARTBEAT_INTERVAL_S = 30.0
"""Seconds between two heartbeats that a launcher sends."""
MAX_HEARTBEAT_AGE_S = 150.0
"""Maximum age in seconds of the latest heartbeat of a launcher on another machine. A launcher with an older heartbeat counts as
silent, because it may have failed."""
MIN_SILENT_POLLING_S = 75.0
"""Minimum seconds without a new heartbeat, while we poll the tracking store, before a silent launcher counts as failed. The age
of a heartbeat alone proves nothing, because clocks differ between machines and an unreachable tracking store hides heartbeats."""

JobState = Literal["done", "busy", "silent", "open"]
"""State of a job. done: its result is recorded · busy: a launcher trains it · silent: its launcher may have failed · open: a
launcher may begin it"""


class JobClaimer:
    """Claims jobs for this launcher, and determines the states of jobs that other launchers claimed."""

    def __init__(self, command: str | None = None) -> None:
        """command: fingerprint of the launcher's command, which is stored in its claims."""
        self._identity = {
            **_machine_identity(),
            **_process_identity(os.getpid()),
            "launcher": uuid.uuid4().hex,
            "command": command,
        }
        self.held: set[str] = set()
        """Ids of the MLflow runs whose jobs this launcher trains."""
        self._slurm = SlurmQueue()
        self._heartbeats: dict[str, tuple[float, float]] = {}
        """Maps each run id to (time of the latest heartbeat on the launcher's clock, time on our clock when we first saw this
        heartbeat)."""

    def tag_text(self, details: Mapping[str, Any]) -> str:
        """Return the text of the tag that stores the claim."""
        return json.dumps({**self._identity, "seen": time.time(), **details})

    def refresh_slurm(self) -> None:
        """Forget the cached SLURM queue, so that the next call of `state` queries SLURM again."""
        self._slurm.forget_last_query()

    def state(self, run_id: str, claim: Mapping[str, Any], run_status: str) -> JobState:
        """Return the state of a job according to its claim. Read the claim only after calling `refresh_slurm`."""
        if claim.get("state") == "done":
            return "done"
        if claim.get("launcher") == self._identity["launcher"]:
            return "busy" if run_id in self.held else "open"  # not held: the store was unreachable during `begin`
        state = "open" if claim.get("state") == "interrupted" else self._training_state(run_id, claim)
        return "done" if state == "open" and run_status in ("FINISHED", "FAILED") else state

    def _training_state(self, run_id: str, claim: Mapping[str, Any]) -> JobState:
        in_slurm = self._slurm.has_claimed_job(claim)
        if in_slurm:
            return "busy"
        state = self._process_state(run_id, claim)
        return "silent" if in_slurm is None and state == "open" else state

    def _process_state(self, run_id: str, claim: Mapping[str, Any]) -> JobState:
        if not self._is_on_this_machine(claim):
            return self._heartbeat_state(run_id, float(claim.get("seen", 0.0)))
        runs = (
            _is_process_running(claim.get("pid"), claim.get("began"))
            or _is_process_running(claim.get("training"), claim.get("training_began"))
            or ("training" not in claim and "slurm" not in claim and _is_logged_on_this_machine(run_id))
        )
        return "busy" if runs else "open"

    def _is_on_this_machine(self, claim: Mapping[str, Any]) -> bool:
        """Return True if the process ids in the claim belong to this machine and container."""
        return all(claim.get(part) == self._identity[part] for part in ("host", "space"))

    def _heartbeat_state(self, run_id: str, seen: float) -> JobState:
        now = time.monotonic()
        if self._heartbeats.get(run_id, (None, 0.0))[0] != seen:
            self._heartbeats[run_id] = (seen, now)
        if abs(time.time() - seen) < MAX_HEARTBEAT_AGE_S:
            return "busy"
        return "open" if now - self._heartbeats[run_id][1] > MIN_SILENT_POLLING_S else "silent"

    def is_launcher_running(self, claim: Mapping[str, Any]) -> bool:
        """Return True if the launcher that made the claim runs on this machine and is not this process."""
        return (
            self._is_on_this_machine(claim)
            and claim.get("pid") != os.getpid()
            and _is_process_running(claim.get("pid"), claim.get("began"))
        )

    def is_overdue(self, claim: Mapping[str, Any]) -> bool:
        """Return True if the claimed training process runs on this machine, has exceeded its time limit, and lost its launcher."""
        return bool(
            self._is_on_this_machine(claim)
            and not _is_process_running(claim.get("pid"), claim.get("began"))
            and _is_process_running(claim.get("training"), claim.get("training_began"))
            and time.time() > float(claim.get("until") or float("inf"))
        )


def read_claim(text: str | None) -> dict[str, Any]:
    """Parse a claim's tag. Parse the text of a claim's tag; return an empty dict if it is missing or invalid."""
    try:
        claim = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return claim if isinstance(claim, dict) else {}


def kill_training(claim: Mapping[str, Any]) -> None:
    """Kill the training process of the claim on this machine, with all processes that it started."""
    if _is_process_running(claim.get("training"), claim.get("training_began")):
        signal_process_group(int(claim["training"]), KILL_SIGNAL)


def _machine_identity() -> dict[str, str]:
    """Return values that identify this machine or container, within which process ids are unique."""
    space = []
    with suppress(OSError):
        space.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        space.append(str(Path("/proc/self/ns/pid").readlink()))
    return {"host": socket.gethostname(), "space": " ".join(space)}


def _process_identity(pid: int) -> dict[str, Any]:
    return {"pid": pid, "began": psutil.Process(pid).create_time()}


def _is_process_running(pid: object, began: object) -> bool:
    """Return True if the process still runs. began: start time of the process; a later process may have the same id."""
    if not isinstance(pid, int) or not isinstance(began, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_logged_on_this_machine(run_id: str) -> bool:
    """Return True if a process on this machine logs to the MLflow run. This check finds the training process of a launcher that
    was killed before it recorded the id of this process."""
    return any(
        (p.info["environ"] or {}).get("MLFLOW_RUN_ID") == run_id and p.info["status"] != psutil.STATUS_ZOMBIE
        for p in psutil.process_iter(["environ", "status"])
        if p.pid != os.getpid()
    )
