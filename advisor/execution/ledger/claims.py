"""Manages claims. A claim is a tag of an MLflow run with the launcher that trains the run and its latest heartbeat."""

from __future__ import annotations

import json
import math
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
MAX_HEARTBEAT_AGE_S = 150.0
"""Maximum seconds since the latest heartbeat of a launcher on another machine. A longer-silent launcher may have failed."""
MIN_POLLING_WITHOUT_HEARTBEAT_S = 75.0
"""Minimum seconds during which we read the tracking store and see no new heartbeat, before a silent launcher counts as failed.
The age of the latest heartbeat alone proves nothing, because clocks differ and an unreachable store hides heartbeats."""

JobState = Literal["done", "busy", "silent", "open"]
"""State of a job. done: the job's result is recorded · busy: a launcher trains the job · silent: the job's launcher may have
failed · open: a launcher may begin the job"""


class JobClaimer:
    """Claims jobs for this launcher, and determines the states of jobs that other launchers claimed."""

    def __init__(self, command: str | None = None) -> None:
        """command: fingerprint of the launcher's command, which is stored in its claims."""
        process_namespace = []  # identifies the machine or container in which process ids are unique
        with suppress(OSError):
            process_namespace.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        with suppress(OSError):
            process_namespace.append(str(Path("/proc/self/ns/pid").readlink()))
        pid = os.getpid()
        self._identity = {
            "host": socket.gethostname(),
            "space": " ".join(process_namespace),
            "pid": pid,
            "began": psutil.Process(pid).create_time(),
            "launcher": uuid.uuid4().hex,
            "command": command,
        }
        self.held_run_ids: set[str] = set()
        self.slurm = SlurmQueue()
        self._heartbeats: dict[str, tuple[float, float]] = {}
        """Maps run ids to (latest heartbeat on the launcher's clock, time on our clock when we first saw it)."""

    def tag_text(self, details: Mapping[str, Any]) -> str:
        return json.dumps({**self._identity, "seen": time.time(), **details})

    def state(self, run_id: str, claim: Mapping[str, Any], run_status: str) -> JobState:
        """Return the state of a job, according to its claim. Read the claim after `SlurmQueue.forget_last_query`."""
        if claim.get("state") == "done":
            return "done"
        if claim.get("launcher") == self._identity["launcher"]:
            return "busy" if run_id in self.held_run_ids else "open"  # open if the store was unreachable during `begin`
        state: JobState = "open"
        if claim.get("state") != "interrupted":
            in_slurm = self.slurm.has_claimed_job(claim)
            if in_slurm:
                return "busy"
            if not self._is_on_this_machine(claim):
                state = self._heartbeat_state(run_id, float(claim.get("seen", 0.0)))
            elif _is_claim_running(run_id, claim):
                state = "busy"
            if in_slurm is None and state == "open":
                state = "silent"
        return "done" if state == "open" and run_status in ("FINISHED", "FAILED") else state

    def _is_on_this_machine(self, claim: Mapping[str, Any]) -> bool:
        return all(claim.get(part) == self._identity[part] for part in ("host", "space"))

    def _heartbeat_state(self, run_id: str, seen: float) -> JobState:
        now = time.monotonic()
        if self._heartbeats.get(run_id, (None, 0.0))[0] != seen:
            self._heartbeats[run_id] = (seen, now)
        if abs(time.time() - seen) < MAX_HEARTBEAT_AGE_S:
            return "busy"
        return "open" if now - self._heartbeats[run_id][1] > MIN_POLLING_WITHOUT_HEARTBEAT_S else "silent"

    def kill_if_overdue(self, claim: Mapping[str, Any]) -> bool:
        """Kill the training process and all processes that it started if it runs on this machine, has exceeded its time limit
        and its launcher no longer runs. Return whether it was killed."""
        is_late = self._is_on_this_machine(claim) and time.time() > float(claim.get("until") or math.inf)
        is_orphan = is_late and not _is_process_running(claim.get("pid"), claim.get("began"))
        is_overdue = is_orphan and _is_process_running(claim.get("training"), claim.get("training_began"))
        if is_overdue:
            signal_process_group(int(claim["training"]), KILL_SIGNAL)
        return is_overdue

    def is_launcher_running(self, claim: Mapping[str, Any]) -> bool:
        """Return True if the claiming launcher runs on this machine and is not this process."""
        is_other_process = self._is_on_this_machine(claim) and claim.get("pid") != os.getpid()
        return is_other_process and _is_process_running(claim.get("pid"), claim.get("began"))


def read_claim(text: str | None) -> dict[str, Any]:
    """Parse the text of a claim's tag. Return an empty dict if the text is missing or invalid."""
    try:
        claim = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return claim if isinstance(claim, dict) else {}


def _is_process_running(pid: object, began: object) -> bool:
    """Return True if the process still runs. began: start time of the process, because a later process may have the same id."""
    if not isinstance(pid, int) or not isinstance(began, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_claim_running(run_id: str, claim: Mapping[str, Any]) -> bool:
    """Return True if the launcher or the training process of a claim runs on this machine."""
    if _is_process_running(claim.get("pid"), claim.get("began")):
        return True
    if "training" in claim or "slurm" in claim:
        return _is_process_running(claim.get("training"), claim.get("training_began"))
    # The launcher may have been killed before it recorded the id of its training process. Such a process has the run's id in
    # its environment.
    processes = (p.info for p in psutil.process_iter(["environ", "status"]) if p.pid != os.getpid())
    running = (info["environ"] or {} for info in processes if info["status"] != psutil.STATUS_ZOMBIE)
    return any(environment.get("MLFLOW_RUN_ID") == run_id for environment in running)
