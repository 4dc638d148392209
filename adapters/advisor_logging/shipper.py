"""The low-priority process that delivers one spool folder after another to MLflow.

MLflow in a thread would compete with the training for the interpreter lock, and the points of a killed training must still be
delivered. After any error, the delivery restarts after the last acknowledged point. A point that is sent twice is stored once,
because both copies have the same timestamp.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor import contract
from advisor.contract.redact import error_reason, one_line_error
from advisor_logging import sidecar, spool
from advisor_logging.limits import clean_time
from advisor_logging.reproduction import collect_reproduction
from advisor_logging.store import MAX_METRICS_PER_REQUEST, MlflowStore, is_temporary_error
from advisor_logging.table import MetricPoint, RowWindowReducer

if TYPE_CHECKING:
    from filelock import FileLock

SHIPPER_POLL_INTERVAL_S = 0.05
SEND_INTERVAL_S = 2.0
"""Maximum seconds to collect points before an incomplete batch is sent."""
MAX_LISTED_NAMES = 5
"""Maximum number of refused metrics, params and tags that a message lists by name."""
MAX_RETRY_S = 600.0
"""Maximum seconds, counted from the exit of the training process, to retry the delivery to an unreachable store."""
MAX_RETRY_PAUSE_S = 10.0
_ARTIFACT_RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds between two attempts to store an artifact while the tracking server responds."""
_REDUCED_ARTIFACT_RETRIES = 4
"""Maximum retries of an artifact if its error is probably permanent, or if other artifacts failed and a training waits."""
STANDBY_POLL_S, LAST_POLL_S = 1.0, 0.2
"""Seconds that an idle shipper waits for a job: while its training process runs, and after the exit of that process."""


class Shipper:
    """trainer: process id of the training that writes the spool in `folder`; None if it has exited."""

    def __init__(
        self,
        folder: Path,
        tracking_uri: str,
        trainer: int | None,
        on_progress: Callable[[spool.SpoolPosition], None] = lambda _: None,
    ) -> None:
        self._folder, self._uri, self._trainer = folder, tracking_uri, trainer
        self._on_progress = on_progress
        self._run = spool.read_json_object(folder / "run.json")
        self._store: MlflowStore | None = None
        self._no_artifacts = False
        self._autopsies: dict[Path, int] = {}
        """Modification time (nanoseconds since 1970) of each autopsy file that is already stored."""
        self._state = spool.read_json_object(folder / "status.json")
        self._rewind_to_acknowledged()

    def _rewind_to_acknowledged(self) -> None:
        self._done = spool.read_acknowledgement(self._folder)
        self._position = self._opened_at = self._done.position
        self._stored_below = self._done.step  # the store already has the values of all steps below this number
        self._windows = RowWindowReducer()
        self._points: list[MetricPoint] = []
        self._ending: Mapping[str, Any] | None = None
        self._sent_at = time.monotonic()
        if self._store is not None:
            self._store.refusal_counts = Counter(self._state.get("refused"))

    def deliver(self, retry_s: float = MAX_RETRY_S) -> bool:
        """Return whether all data was delivered, at the latest `retry_s` seconds after the exit of the training process."""
        retry_pause_s, exited_at = SHIPPER_POLL_INTERVAL_S, None
        while True:
            # The exit of the training process is checked before reading, so that the reading includes everything that it wrote
            # before its exit.
            has_exited = self._has_trainer_exited()
            if has_exited and exited_at is None:
                exited_at = time.monotonic()
            had_store, acknowledged_before = self._store is not None, self._done
            try:
                if self._deliver_new_data(has_exited):
                    self._update_status(error=None, delivered=True)
                    return True
                self._update_status(error=None)
                retry_pause_s = SHIPPER_POLL_INTERVAL_S
            except Exception as error:
                self._update_status(error=error_reason(error))
                if (self._store is not None, self._done) != (had_store, acknowledged_before):
                    retry_pause_s = SHIPPER_POLL_INTERVAL_S  # the server accepted some data: probably a temporary failure
                self._rewind_to_acknowledged()
                if exited_at is not None and time.monotonic() - exited_at > retry_s:
                    return False
                retry_pause_s = min(2 * retry_pause_s, MAX_RETRY_PAUSE_S)
            time.sleep(retry_pause_s)

    def _has_trainer_exited(self) -> bool:
        return self._trainer is None or _has_exited(self._trainer)

    def _deliver_new_data(self, has_exited: bool) -> bool:
        """Send new points to the store. Return whether the run has ended and all its data is delivered."""
        store = self._open_store()
        for frame in spool.read_frames(self._folder, self._position):
            self._process_frame(store, frame)
            self._position = frame.end
            if len(self._points) >= MAX_METRICS_PER_REQUEST:
                self._send_points(store)
        end_event = self._ending
        if end_event is None and has_exited:
            write_times_ms = (int(path.stat().st_mtime * 1000) for path in self._folder.glob("*.spool"))
            end_event = {"status": "KILLED", "time_ms": max(write_times_ms, default=int(self._run["start_ms"])), "tags": {}}
        if end_event is None:
            if time.monotonic() - self._sent_at > SEND_INTERVAL_S:
                self._send_points(store)
                with contextlib.suppress(Exception):  # an artifact that failed here is stored by a retry at the end of the run
                    self._store_new_autopsy(store)
            return False
        self._points += self._windows.close()
        store.log_points(self._points)
        store.set_tags(end_event["tags"])
        self._report_refused_values(store, int(end_event["tags"].get(contract.TAG_LOST_POINTS, 0)))
        store.delete_duplicate_runs(self._run)
        if self._run["ends_run"]:
            store.end_run(end_event["status"], end_event["time_ms"])
        self._store_artifact(store, "the autopsy", lambda: self._store_new_autopsy(store))
        self._store_sidecar(store)
        return True

    def _report_refused_values(self, store: MlflowStore, lost_before: int) -> None:
        """lost_before: number of points that were lost for other reasons."""
        if not store.refusal_counts:
            return
        refused_points = sum(count for name, count in store.refusal_counts.items() if name.startswith("metric "))
        if refused_points:
            store.set_tags({contract.TAG_LOST_POINTS: str(lost_before + refused_points)})
        names = [f"{name} ({count:,})" for name, count in store.refusal_counts.most_common(MAX_LISTED_NAMES)]
        names += [f"{len(store.refusal_counts) - MAX_LISTED_NAMES} more"] * (len(store.refusal_counts) > MAX_LISTED_NAMES)
        error_reason = next(iter(store.refusal_reasons.values()), "")
        text = f"the store refused {store.refusal_counts.total():,} values: {', '.join(names)}: {error_reason}"
        self._add_problem_note(one_line_error(text, 600))

    def _store_new_autopsy(self, store: MlflowStore) -> None:
        for artifact in (contract.AUTOPSY_PATH, contract.AUTOPSY_BATCH_PATH):
            path = self._folder / artifact.rpartition("/")[2]
            if path.exists() and self._autopsies.get(path) != (modified_ns := path.stat().st_mtime_ns):
                store.log_file(path, artifact)
                if artifact == contract.AUTOPSY_PATH:
                    store.set_tags({contract.TAG_AUTOPSY: "true"})
                self._autopsies[path] = modified_ns

    def _store_sidecar(self, store: MlflowStore) -> None:
        """Store the curves at full resolution. A permanent failure only adds a note, because the run is usable without them."""
        path = self._folder / sidecar.sidecar_name(self._run)
        try:
            summary = sidecar.write_sidecar(self._folder, path, continued=sidecar.is_continued_run(self._run))
        except Exception as error:
            if is_temporary_error(error):  # a full disk is a temporary error: the caller retries later
                raise
            self._add_problem_note(f"the curves at full resolution could not be written ({one_line_error(error)})")
            return
        if summary is None:
            return
        artifact = f"{contract.SIDECAR_PATH.rpartition('/')[0]}/{path.name}"

        def store_and_tag() -> None:
            store.log_file(path, artifact)
            tag = sidecar.updated_sidecar_tag(store.read_tag(contract.TAG_CURVE_FILES), artifact, summary)
            store.set_tags({contract.TAG_CURVE_FILES: tag})

        self._store_artifact(store, "the curves at full resolution", store_and_tag)

    def _store_artifact(self, store: MlflowStore, what: str, send: Callable[[], None]) -> None:
        """Call `send` again after temporary failures; after a permanent failure, leave a note in `status.json`."""
        for attempt, pause in enumerate((*_ARTIFACT_RETRY_WAITS_S, None)):
            try:
                send()
                return
            except Exception as error:
                store.read_tag(contract.TAG_CURVE_FILES)  # raises if the server itself fails; the caller then retries
                if pause is None or not self._may_succeed_later(attempt, error):
                    self._add_problem_note(f"{what} could not be stored ({one_line_error(error)})")
                    return
                time.sleep(pause)

    def _may_succeed_later(self, attempt: int, error: Exception) -> bool:
        """Allow fewer retries of an artifact if earlier artifacts failed and a training process may be waiting."""
        if not self._no_artifacts:
            return attempt < _REDUCED_ARTIFACT_RETRIES or is_temporary_error(error)
        return is_temporary_error(error) and (attempt < _REDUCED_ARTIFACT_RETRIES or self._has_trainer_exited())

    def _open_store(self) -> MlflowStore:
        if self._store is None:
            store = MlflowStore(self._uri)
            store.refusal_counts.update(self._state.get("refused", {}))
            run_id = store.open_run(self._run, self._state.get("run_id"))
            self._update_status(run_id=run_id, experiment_id=store.experiment_id)
            self._log_reproduction(store)
            self._store = store
        return self._store

    def _log_reproduction(self, store: MlflowStore) -> None:
        facts = spool.read_json_object(self._folder / "reproduction.json")
        if not facts:
            return
        if facts["git_commit"]:
            dirty = "true" if facts["git_dirty"] else "false"
            store.set_tags({contract.TAG_GIT_COMMIT: facts["git_commit"], contract.TAG_GIT_DIRTY: dirty})
        try:
            self._log_text(store, facts["requirements"], "requirements.txt")
            if facts["git_diff"]:
                self._log_text(store, facts["git_diff"], "git.diff")
        except Exception as error:  # the artifact store may be unreachable forever, and the metric values matter more
            self._no_artifacts = True
            self._add_problem_note(f"the git diff and the requirements could not be stored ({one_line_error(error)})")

    def _log_text(self, store: MlflowStore, text: str, name: str) -> None:
        path = self._folder / name
        path.write_text(text, encoding="utf-8", newline="")
        store.log_file(path, f"reproduce/{name}")
        path.unlink()

    def _process_frame(self, store: MlflowStore, frame: spool.SpoolFrame) -> None:
        if frame.kind == spool.EVENT:
            self._process_event(store, frame.event())
            return
        for step, written_ms, values in frame.rows():
            time_ms = clean_time(written_ms)
            if frame.kind != spool.STEPS:
                self._points += [MetricPoint(name, value, step, time_ms) for name, value in values.items()]
            elif step >= self._stored_below:
                previous_window_start = self._windows.window_start
                self._points += self._windows.add_row(step, time_ms, values)
                if self._windows.window_start != previous_window_start:
                    self._opened_at = frame.start

    def _process_event(self, store: MlflowStore, event: Mapping[str, Any]) -> None:
        if "end" in event:
            self._ending = event["end"]
        if event.get("tags"):
            store.set_tags(event["tags"])
        refused = store.log_params(event["params"]) if event.get("params") else []
        if refused:
            self._add_problem_note(f"the run keeps its earlier values of the parameters {', '.join(refused)}")

    def _send_points(self, store: MlflowStore) -> None:
        """Send the collected points, and then acknowledge all frames before the first row of the incomplete window."""
        store.log_points(self._points)
        self._points, self._sent_at = [], time.monotonic()
        self._on_progress(self._position)
        window_start = self._windows.window_start
        done = (
            spool.Acknowledgement(self._position)
            if window_start is None
            else spool.Acknowledgement(self._opened_at, window_start)
        )
        if done != self._done:
            self._acknowledge_delivery(done)

    def _acknowledge_delivery(self, acknowledgement: spool.Acknowledgement) -> None:
        try:
            spool.write_acknowledgement(self._folder, acknowledgement)
        except OSError:  # the disk is full, but deleting delivered segments frees space
            self._archive_segments(acknowledgement)
            with contextlib.suppress(OSError):  # after a crash, the points are sent again but stored only once
                spool.write_acknowledgement(self._folder, acknowledgement)
        self._done = acknowledgement
        if self._store is not None and self._store.refusal_counts:
            self._update_status(refused=dict(self._store.refusal_counts))
        self._archive_segments(acknowledgement)

    def _archive_segments(self, acknowledgement: spool.Acknowledgement) -> None:
        if problem := sidecar.archive_segments(self._folder, acknowledgement.position.segment):
            self._add_problem_note(f"the curves at full resolution are incomplete ({one_line_error(problem)})")

    def _add_problem_note(self, text: str) -> None:
        notes = [note for note in str(self._state.get("note") or "").split("; ") if note]
        if text not in notes:
            self._update_status(note="; ".join([*notes, text]))

    def _update_status(self, **news: Any) -> None:
        state = {**self._state, **news}
        if state != self._state:
            self._state = state
            with contextlib.suppress(OSError):  # a full disk
                spool.write_json(self._folder / "status.json", state)


def lock_spool(folder: Path) -> FileLock | None:
    """Acquire and return the spool's lock; return None if another process holds it."""
    from filelock import FileLock, Timeout  # a slow import, which the training process does not need

    lock = FileLock(folder / "lock", mode=0o600)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def main(trainer: Mapping[str, Any], lines: RawIOBase) -> None:
    """Deliver one spool folder after another, until a line contains null or the training process exits.

    lines: each names a spool folder as {"folder", "script_folder"}. trainer: {"process": its id, "tracking_uri", "standby_s"}.
    Exit status 1: a spool could not be delivered; 2: another process is already delivering it.
    """
    if hasattr(os, "nice"):
        os.nice(10)
    logging.disable()  # standard error must contain only the reason of an exit; problems with the store go to `status.json`
    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_delivery_jobs, args=(lines, jobs), daemon=True).start()
    job = _next_delivery_job(jobs, trainer)
    while job is not None:
        folder = Path(job["folder"])
        _deliver_from_locked_spool(folder, Path(job["script_folder"]), trainer)
        job = _next_delivery_job(jobs, trainer)
        # The training process usually deletes a delivered spool folder; if it has exited or no longer waits for the delivery,
        # this process deletes the folder.
        spool.remove_spool(folder)


def _receive_delivery_jobs(lines: RawIOBase, jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in iter(lines.readline, b""):
        jobs.put(json.loads(line))
    jobs.put(None)


def _next_delivery_job(jobs: queue.SimpleQueue[dict[str, Any] | None], trainer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the next spool folder to deliver; None if training is over, or sent no job for `standby_s` seconds."""
    standby_end = time.monotonic() + trainer["standby_s"]
    while True:
        # The exit of the training process is checked before reading, so that a job sent just before its exit is still read.
        is_last = _has_exited(trainer["process"]) or time.monotonic() > standby_end
        try:
            return jobs.get(timeout=LAST_POLL_S if is_last else STANDBY_POLL_S)
        except queue.Empty:
            if is_last:
                return None


def _has_exited(parent: int) -> bool:
    """Return whether the parent process has exited; on Windows, a child keeps the same parent id after the parent's exit."""
    if os.name != "nt":
        return os.getppid() != parent
    import psutil

    return not psutil.pid_exists(parent)


def _deliver_from_locked_spool(folder: Path, script_folder: Path, trainer: Mapping[str, Any]) -> None:
    lock = lock_spool(folder)
    if lock is None:
        sys.stderr.write(f"another process delivers {folder}\n")
        sys.exit(2)
    try:
        if not (folder / "reproduction.json").exists():
            # Done before the slow import of MLflow, because the working tree may change soon.
            with contextlib.suppress(Exception):  # the points matter more than the code's description
                spool.write_json(folder / "reproduction.json", collect_reproduction([Path.cwd(), script_folder]))
        if not Shipper(folder, trainer["tracking_uri"], trainer["process"]).deliver():
            sys.exit(1)
    except Exception as error:
        spool.write_json(
            folder / "status.json", {**spool.read_json_object(folder / "status.json"), "error": one_line_error(error)}
        )
        raise
    lock.release()
