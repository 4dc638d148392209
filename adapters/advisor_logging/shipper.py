"""The process that carries spools to MLflow, one after another: of low priority, outlives the trainer, never makes it wait.

It runs apart because importing and driving MLflow in a thread of the trainer would take turns with the training at the
interpreter lock, and because what a killed trainer has written must still arrive. Whatever goes wrong with the store, it starts
again from what is acknowledged; sending a point twice stores it once, since its timestamp is the spool's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.contract.redact import one_line, reason
from advisor_logging import sidecar
from advisor_logging.reproduction import gather
from advisor_logging.spool import (
    EVENT,
    STEPS,
    Acknowledged,
    Frame,
    Position,
    acknowledge,
    read_acknowledged,
    read_frames,
    read_json,
    remove,
    write_json,
)
from advisor_logging.store import MAX_METRICS, Store
from advisor_logging.windows import Point, Windows

POLL_S = 0.05
SEND_EVERY_S = 2.0
"""Points wait this long for company, unless a full batch is there or the run ends."""
LINGER_S = 600.0
"""How long after the trainer's end an unreachable store is tried again."""
MAX_BACK_OFF_S = 10.0
_ARTIFACT_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Between attempts to store an artifact while the tracking server itself is well."""
STANDBY_POLL_S = 1.0
"""How often an idle shipper looks whether its trainer is still there."""


class Shipper:
    """Delivers the spool in `folder`. `trainer` is the process that writes it, None when it is known to be over."""

    def __init__(
        self,
        folder: Path,
        tracking_uri: str,
        trainer: int | None,
        on_progress: Callable[[Position], None] = lambda _: None,
    ) -> None:
        self._folder, self._uri, self._trainer = folder, tracking_uri, trainer
        self._on_progress = on_progress
        self._run = read_json(folder / "run.json")
        self._store: Store | None = None
        self._no_artifacts = False
        self._state = read_json(folder / "status.json")
        self._rewind()

    def _rewind(self) -> None:
        """Go back to what is acknowledged."""
        self._done = read_acknowledged(self._folder)
        self._position = self._opened_at = self._done.position
        self._stored_below = self._done.step  # of the rows that are now read again
        self._windows = Windows()
        self._points: list[Point] = []
        self._ending: Mapping[str, Any] | None = None
        self._sent_at = time.monotonic()

    def deliver(self, linger_s: float = LINGER_S) -> bool:
        """Carry on until the run has ended and is delivered (True), or the trainer and the patience have (False)."""
        back_off, gone_since = POLL_S, None
        while True:
            # Asked before reading: whatever a trainer wrote before it went is then read.
            gone = self._is_trainer_gone()
            if gone and gone_since is None:
                gone_since = time.monotonic()
            opened, done = self._store is not None, self._done
            try:
                if self._deliver_more(gone):
                    self._report(error=None, delivered=True)
                    return True
                self._report(error=None)
                back_off = POLL_S
            except Exception as error:
                self._report(error=reason(error))
                if (self._store is not None, self._done) != (opened, done):
                    back_off = POLL_S  # it was of some use: a server that fails now and then, and is not down
                self._rewind()
                if gone_since is not None and time.monotonic() - gone_since > linger_s:
                    return False
                back_off = min(2 * back_off, MAX_BACK_OFF_S)
            time.sleep(back_off)

    def _is_trainer_gone(self) -> bool:
        return self._trainer is None or os.getppid() != self._trainer

    def _deliver_more(self, gone: bool) -> bool:
        """Send what is new; whether the run is over and delivered."""
        store = self._open()
        for frame in read_frames(self._folder, self._position):
            self._take(store, frame)
            self._position = frame.end
            if len(self._points) >= MAX_METRICS:
                self._send(store)
        ending = self._ending or (
            {"status": "KILLED", "time_ms": self._last_written_ms(), "tags": {}} if gone else None
        )
        if ending is None:
            if time.monotonic() - self._sent_at > SEND_EVERY_S:
                self._send(store)
            return False
        self._points += self._windows.close()
        store.log_points(self._points)
        store.set_tags(ending["tags"])
        if self._run["ends_run"]:
            store.end(ending["status"], ending["time_ms"])
        self._store_sidecar(store)
        return True

    def _store_sidecar(self, store: Store) -> None:
        """Store the curves at full resolution beside the run, which is whole without them: it has ended, come what may."""
        path = self._folder / sidecar.file_name(self._run)
        try:
            written = sidecar.write(self._folder, path, continued=sidecar.continues(self._run))
        except Exception as error:
            self._note(f"the curves at full resolution could not be written ({one_line(error)})")
            return
        if written is None:
            return
        artifact = f"{contract.SIDECAR_PATH.rpartition('/')[0]}/{path.name}"
        for pause in (*_ARTIFACT_PAUSES_S[: 0 if self._no_artifacts else None], None):
            try:
                store.log_file(path, artifact)
                store.set_tags(
                    {contract.TAG_SIDECAR: sidecar.tag_with(store.tag(contract.TAG_SIDECAR), artifact, written)}
                )
                return
            except Exception as error:
                store.tag(contract.TAG_SIDECAR)  # raises where it is the tracking server that is unwell: later, then
                if pause is None:
                    self._note(f"the curves at full resolution could not be stored ({one_line(error)})")
                else:
                    time.sleep(pause)

    def _open(self) -> Store:
        if self._store is None:
            store = Store(self._uri)
            run_id = store.open_run(self._run)
            self._report(run_id=run_id)
            self._log_reproduction(store)
            self._store = store
        return self._store

    def _log_reproduction(self, store: Store) -> None:
        facts = read_json(self._folder / "reproduction.json")
        if not facts:
            return
        if facts["git_commit"]:
            dirty = "true" if facts["git_dirty"] else "false"
            store.set_tags({contract.TAG_GIT_COMMIT: facts["git_commit"], contract.TAG_GIT_DIRTY: dirty})
        try:
            self._log_text(store, facts["requirements"], "requirements.txt")
            if facts["git_diff"]:
                self._log_text(store, facts["git_diff"], "git.diff")
        except Exception as error:  # an artifact store may be out of reach for good: the curves matter more
            self._no_artifacts = True
            self._note(f"the git diff and the requirements could not be stored ({one_line(error)})")

    def _log_text(self, store: Store, text: str, name: str) -> None:
        """Store a text as an artifact, by way of the spool, with which it is removed, come what may."""
        path = self._folder / name
        path.write_text(text, encoding="utf-8", newline="")
        store.log_file(path, f"reproduce/{name}")
        path.unlink()

    def _take(self, store: Store, frame: Frame) -> None:
        if frame.kind == EVENT:
            self._take_event(store, frame.event())
            return
        for step, time_ms, values in frame.rows():
            if frame.kind != STEPS:
                self._points += [Point(name, value, step, time_ms) for name, value in values.items()]
            elif step >= self._stored_below:
                before = self._windows.open_since
                self._points += self._windows.add(step, time_ms, values)
                if self._windows.open_since != before:
                    self._opened_at = frame.start

    def _take_event(self, store: Store, event: Mapping[str, Any]) -> None:
        if "end" in event:
            self._ending = event["end"]
        if event.get("tags"):
            store.set_tags(event["tags"])
        refused = store.log_params(event["params"]) if event.get("params") else []
        if refused:
            self._note(f"the run keeps its earlier values of the parameters {', '.join(refused)}")

    def _send(self, store: Store) -> None:
        """Send the points, then note that everything up to the open window's first row is delivered."""
        store.log_points(self._points)
        self._points, self._sent_at = [], time.monotonic()
        self._on_progress(self._position)
        since = self._windows.open_since
        done = Acknowledged(self._position) if since is None else Acknowledged(self._opened_at, since)
        if done != self._done:
            self._acknowledge(done)

    def _acknowledge(self, done: Acknowledged) -> None:
        try:
            acknowledge(self._folder, done)
        except OSError:  # the disk is full, and what is delivered makes room on it
            self._archive(done)
            with contextlib.suppress(OSError):  # sent again after a crash, and stored once
                acknowledge(self._folder, done)
        self._done = done
        self._archive(done)

    def _archive(self, done: Acknowledged) -> None:
        if problem := sidecar.archive(self._folder, done.position.segment):
            self._note(f"the curves at full resolution are not whole ({one_line(problem)})")

    def _last_written_ms(self) -> int:
        return int(max(p.stat().st_mtime for p in self._folder.glob("*.spool")) * 1000)

    def _note(self, text: str) -> None:
        """Add to what the trainer says at the end."""
        notes = [note for note in str(self._state.get("note") or "").split("; ") if note]
        if text not in notes:
            self._report(note="; ".join([*notes, text]))

    def _report(self, **news: Any) -> None:
        """Tell the trainer, through `status.json`."""
        state = {**self._state, **news}
        if state != self._state:
            self._state = state
            with contextlib.suppress(OSError):  # a full disk
                write_json(self._folder / "status.json", state)


def lock(folder: Path) -> int | None:
    """Become the one process that delivers the spool in `folder`, until it ends; None if another one does."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def main(trainer: Mapping[str, Any], lines: RawIOBase) -> None:
    """Deliver one spool after another: each of `lines` is {"folder", "script_folder"}; null, or the trainer's end, ends it.

    `trainer` is {"process": its id, "tracking_uri", "standby_s": how long to wait for a line}. Exit status 1: a spool could not be
    delivered, 2: another process delivers it.
    """
    os.nice(10)
    logging.disable()  # standard error is for what ends this process; what ails the store is in `status.json`
    job = _next_job(lines, trainer)
    while job is not None:
        folder = Path(job["folder"])
        _ship(folder, Path(job["script_folder"]), trainer)
        job = _next_job(lines, trainer)
        # The trainer has seen that all is delivered, and removed it; or it waits no longer, or is gone, and nobody else will.
        remove(folder)


def _next_job(lines: RawIOBase, trainer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Stand by for the next line; None if there will be none, or none has come for long."""
    leave_at = time.monotonic() + trainer["standby_s"]
    while True:
        gone = (
            os.getppid() != trainer["process"] or time.monotonic() > leave_at
        )  # asked before looking, so that a line written just before its end is read
        if select.select([lines], [], [], 0.0 if gone else STANDBY_POLL_S)[0]:
            job: dict[str, Any] | None = json.loads(lines.readline() or b"null")
            return job
        if gone:
            return None


def _ship(folder: Path, script_folder: Path, trainer: Mapping[str, Any]) -> None:
    """Deliver one spool, or exit."""
    descriptor = lock(folder)
    if descriptor is None:
        sys.stderr.write(f"another process delivers {folder}\n")
        sys.exit(2)
    try:
        if not (folder / "reproduction.json").exists():
            # Now, before MLflow's slow import: the working tree may change under a long training.
            write_json(folder / "reproduction.json", gather([Path.cwd(), script_folder]))
        if not Shipper(folder, trainer["tracking_uri"], trainer["process"]).deliver():
            sys.exit(1)
    except Exception as error:
        write_json(folder / "status.json", {**read_json(folder / "status.json"), "error": one_line(error)})
        raise
    os.close(descriptor)
