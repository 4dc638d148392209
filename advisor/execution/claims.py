"""Claims: what a run's tag says of who trains it, and whether that still holds."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from advisor.execution.engines import slurm

HEARTBEAT_S = 30.0
SILENT_S = 150.0
"""A launcher on another machine that is silent for so long may be dead."""
CONFIRM_S = 75.0
"""It is, once it stayed silent for so long while we listened: clocks differ, and while a store is away nobody is heard."""

State = Literal["done", "busy", "silent", "open"]
"""done: ended and counted · busy: somebody trains it now · silent: somebody did, perhaps still does · open: nobody does"""


class Claimant:
    """This launcher, as its claims name it."""

    def __init__(self) -> None:
        self._me = {**_place(), **_process(os.getpid()), "launcher": uuid.uuid4().hex}
        self.held: set[str] = set()
        """The runs of jobs that this launcher trains now."""
        self._queue = slurm.Queue()
        self._heard: dict[str, tuple[float, float]] = {}
        """By run: when a launcher was last heard by its own clock, and since when we know that, by ours."""

    def note(self, more: Mapping[str, Any]) -> str:
        """The tag's text."""
        return json.dumps({**self._me, "seen": time.time(), **more})

    def look_anew(self) -> None:
        """SLURM's queue is to be looked at anew: claims were read since."""
        self._queue.forget()

    def state(self, run_id: str, said: Mapping[str, Any], run_status: str) -> State:
        """Of a claim that was read after `look_anew`."""
        if said.get("state") == "done":
            return "done"
        if said.get("launcher") == self._me["launcher"]:
            return "busy" if run_id in self.held else "open"  # begun as the store went away, and never heard of
        alive = "open" if said.get("state") == "interrupted" else self._alive(run_id, said)
        return "done" if alive == "open" and run_status in ("FINISHED", "FAILED") else alive

    def _alive(self, run_id: str, said: Mapping[str, Any]) -> State:
        in_queue = self._queue.lives(said)
        if in_queue:
            return "busy"
        alive = self._launched(run_id, said)
        return "silent" if in_queue is None and alive == "open" else alive

    def _launched(self, run_id: str, said: Mapping[str, Any]) -> State:
        """Of a claim, by its launcher and its process."""
        if not self._is_here(said):
            return self._silence(run_id, float(said.get("seen", 0.0)))
        known = "training" in said or "slurm" in said
        lives = (
            _lives(said.get("pid"), said.get("began"))
            or _lives(said.get("training"), said.get("training_began"))
            or (not known and _trained_here(run_id))
        )
        return "busy" if lives else "open"

    def _is_here(self, said: Mapping[str, Any]) -> bool:
        """Whether the numbers of processes in a claim mean the same here."""
        return all(said.get(part) == self._me[part] for part in ("host", "space"))

    def _silence(self, run_id: str, seen: float) -> State:
        now = time.monotonic()
        if self._heard.get(run_id, (None, 0.0))[0] != seen:
            self._heard[run_id] = (seen, now)
        if abs(time.time() - seen) < SILENT_S:
            return "busy"
        return "open" if now - self._heard[run_id][1] > CONFIRM_S else "silent"

    def overdue(self, said: Mapping[str, Any]) -> bool:
        """Whether a training on this machine that has lost its launcher outlives its time."""
        return bool(
            self._is_here(said)
            and not _lives(said.get("pid"), said.get("began"))
            and _lives(said.get("training"), said.get("training_began"))
            and time.time() > float(said.get("until") or float("inf"))
        )


def read(text: str | None) -> dict[str, Any]:
    """The tag's content; empty where there is none that can be read."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def kill(said: Mapping[str, Any]) -> None:
    """End the training of a claim on this machine, with all that it started."""
    if _lives(said.get("training"), said.get("training_began")):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(said["training"]), signal.SIGKILL)


def _place() -> dict[str, str]:
    """Where numbers of processes mean the same: containers have their own, and may have their host's name."""
    space = []
    with suppress(OSError):
        space.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        space.append(str(Path("/proc/self/ns/pid").readlink()))
    return {"host": socket.gethostname(), "space": " ".join(space)}


def _process(pid: int) -> dict[str, Any]:
    return {"pid": pid, "began": psutil.Process(pid).create_time()}


def _lives(pid: object, began: object) -> bool:
    """Whether the process that began then still runs."""
    if not isinstance(pid, int) or not isinstance(began, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _trained_here(run_id: str) -> bool:
    """Whether some process of this machine logs into the run: one whose launcher was killed before it could note its number."""
    found = psutil.process_iter(["environ", "status"])
    return any(
        (p.info["environ"] or {}).get("MLFLOW_RUN_ID") == run_id and p.info["status"] != psutil.STATUS_ZOMBIE
        for p in found
        if p.pid != os.getpid()
    )
