"""Records one run: a writer thread writes the run's values to the spool, and a shipper process delivers the spool to MLflow."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from advisor.contract import TAG_LOST_POINTS
from advisor.contract.redact import one_line_error, redact, redact_value, register_address_secrets, register_argument_secrets
from advisor_logging import spool
from advisor_logging.disk_quota import SPOOL_QUOTA_VARIABLE, DiskQuota, read_quota_bytes
from advisor_logging.guard_process import Guard
from advisor_logging.limits import clean_name, clean_table, clean_text, clean_time
from advisor_logging.run_description import RunSettings, describe_run, resolve_tracking_uri
from advisor_logging.shipper import MAX_RETRY_S
from advisor_logging.shipper_process import ShipperProcess, acquire_shipper
from advisor_logging.table import MetricTable, RowCompletion

logger = logging.getLogger("advisor")

MAX_WAITING_ROWS = 50_000
"""Maximum rows that wait in memory to be written to disk. If the disk hangs, further rows are lost and counted."""
CLOSE_POLL_INTERVAL_S = 0.01
WRITER_WAKE_INTERVAL_S = 1.0
INCOMPLETE_ROWS_WAIT_S = 0.25
"""Maximum seconds for which the writer thread waits for new data. The shorter wait `INCOMPLETE_ROWS_WAIT_S` applies while rows in
memory wait for the values of other ranks, because a killed process loses its rows in memory."""


SampleFunction = Callable[[bool], Mapping[str, float] | None]
"""Function that returns the current values of sampled metrics, or None if the next sample is not due yet. The writer thread
calls the function with False about once a second, and with True at the end of the run."""


class RowChunk(Protocol):
    """Rows of metric values that are being copied from a device (such as a GPU) to the host."""

    is_windowed: bool
    """Whether the rows are training steps, which are reduced to windows; rows of evaluations are stored unchanged."""

    def __len__(self) -> int: ...

    def is_ready(self) -> bool:
        """Return whether the values have arrived on the host; does not block."""

    def tables(self) -> list[MetricTable]:
        """Return the rows. The writer thread calls `tables` once, after `is_ready` has returned True."""


class Recorder:
    """Records one run without blocking the caller; only `drain` waits for the disk, and only `close` for the store."""

    def __init__(
        self, settings: RunSettings, on_rows: Callable[[MetricTable], None], completion: RowCompletion | None = None
    ) -> None:
        """`completion` adds the values of other ranks to each row before `on_rows` receives it. Raises OSError if no spool can
        be written."""
        self._on_rows, self._completion = on_rows, completion
        self._uri = resolve_tracking_uri(settings.tracking_uri)
        register_address_secrets(self._uri)
        register_argument_secrets(map(clean_text, [*getattr(sys, "argv", ()), *sys.orig_argv]))
        self.id = uuid.uuid4().hex[:12]
        self.folder = _make_spool_folder(settings.spool, self.id)
        self._warned: set[str] = set()
        self._quota = DiskQuota(self.folder, read_quota_bytes(self.warn))
        try:
            self._spool = spool.SpoolWriter(self.folder, self._quota.segment_bytes)
            # Written last, because a folder counts as a spool once it contains this file.
            spool.write_json(self.folder / "run.json", describe_run(settings, self.id, self._uri))
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._backlog = spool.FrameBacklog(self._spool)
        self._queue: queue.SimpleQueue[RowChunk | dict[str, Any] | Callable[[], None] | None] = queue.SimpleQueue()
        self._queued_rows = self._taken_rows = 0
        self._lost_points = 0
        self._points_a_row = 1
        self._last_step = self._sampled_step = -1
        self.sampler: SampleFunction | None = None
        self.guard: Guard | None = None
        """Judges the run during training; the writer thread polls it for verdicts."""
        self._status: dict[str, Any] = {}
        self._watched_at = self._replaced_at = -math.inf
        self._shipper: ShipperProcess | None = None
        self._acquire_shipper()
        self._thread = threading.Thread(target=self._run_writer, name="advisor-writer", daemon=True)
        self._thread.start()

    def put(self, chunk: RowChunk) -> None:
        if self._queued_rows - self._taken_rows > MAX_WAITING_ROWS:
            self._lost_points += len(chunk) * self._points_a_row
            self.warn("full", f"metric points are being lost: writing to {self.folder} fails")
            return
        self._queued_rows += len(chunk)
        self._queue.put(chunk)

    def note(self, *, tags: Mapping[str, object] | None = None, params: Mapping[str, object] | None = None) -> None:
        event = {"tags": tags or {}, "params": params or {}}
        for kind, texts in event.items():
            event[kind] = {clean_name(name): redact_value(clean_text(value)) for name, value in texts.items()}
        self._queue.put(event)

    def defer(self, task: Callable[[], None]) -> None:
        """Call `task` after all queued data is written, in the writer thread; after `drain`, call it immediately."""
        if self._thread.is_alive():
            self._queue.put(task)
        else:
            task()

    def add_lost_points(self, points: int) -> None:
        self._lost_points += points

    def warn(self, key: str, message: str) -> None:
        """Log a one-line warning, once per `key`."""
        if key not in self._warned:
            self._warned.add(key)
            logger.warning("advisor: %s", redact(message))

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None before the shipper process has created the run."""
        run_id = self._read_status().get("run_id")
        return None if run_id is None else str(run_id)

    def drain(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all queued data is on disk. No more data may be queued after this call."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.warn("drain", f"the last points were not written to disk within {timeout_s:g} s")

    def close(self, mlflow_status: str, tags: Mapping[str, str], timeout_s: float) -> None:
        """End the run after `drain`. Wait at most `timeout_s` seconds for the store; if it still lacks data, say where the data
        is."""
        deadline = time.monotonic() + timeout_s
        if self.guard is not None:
            self.guard.stop()
        tags = {clean_name(name): redact(clean_text(value)) for name, value in tags.items()}
        if not self._thread.is_alive():
            self._wait_for_disk(deadline)
        if lost_points := self._lost_points + self._backlog.dropped_points:
            tags[TAG_LOST_POINTS] = str(lost_points)
        end = {"status": mlflow_status, "time_ms": clean_time(time.time() * 1000), "tags": tags}
        self._backlog.append(spool.encode_event({"end": end}), critical=True)
        self._wait_for_disk(deadline)
        self._spool.close()
        if self._is_delivered(deadline) and self._shipper is not None:
            if note := self._status.get("note"):
                self.warn("note", str(note))
            spool.remove_spool(self.folder)
            self._shipper.release()
            return
        self._warn_undelivered(timeout_s)
        if self._shipper is not None:
            self._shipper.stop()

    def _wait_for_disk(self, deadline: float) -> None:
        """Write the frames that wait in memory; those that the disk refuses until `deadline` are lost."""
        while not self._backlog.retry(at_once=True):
            if time.monotonic() > deadline:
                lost, why = self._backlog.drop_waiting_frames(), one_line_error(self._backlog.last_error or "")
                self._lost_points += lost
                self.warn("disk", f"the last {lost:,} points are lost: {self.folder} accepts no more ({why})")
                return
            time.sleep(CLOSE_POLL_INTERVAL_S)

    def _warn_undelivered(self, timeout_s: float) -> None:
        sync_hint = f"`advisor sync {self.folder}` delivers the points"
        place = f"the points stay in {self.folder}"
        store_error = self._status.get("error")
        if self._shipper is None:
            self.warn("left", f"no process could be started to deliver to MLflow at {self._uri}; {place}: {sync_hint}")
        elif ended := self._shipper.exit_reason():
            self.warn("left", f"the shipper process failed with {ended}; {place}: {sync_hint}")
        else:
            self.warn(
                "left",
                f"MLflow at {self._uri} did not store everything within {timeout_s:g} s ({store_error or 'it is slow'}); {place}: "
                f"a background process retries for {MAX_RETRY_S / 60:g} minutes; after that, {sync_hint}",
            )

    def _is_delivered(self, deadline: float) -> bool:
        while not self._read_status().get("delivered"):
            if time.monotonic() > deadline or not self._has_shipper():
                return False
            time.sleep(CLOSE_POLL_INTERVAL_S)
        return True

    def _read_status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            self._status = spool.read_json_object(self.folder / "status.json") or self._status
        return self._status

    # The writer thread calls the methods below.

    def _run_writer(self) -> None:
        idle_s = WRITER_WAKE_INTERVAL_S if self._completion is None else INCOMPLETE_ROWS_WAIT_S
        while True:
            try:
                item = self._queue.get(timeout=idle_s)
            except queue.Empty:
                item = {}
            try:
                if item is None or item == {}:
                    self._spool_completed_rows(last=item is None)
                    self._backlog.retry()
                elif isinstance(item, dict):
                    self._append_frame(spool.encode_event(item), critical=True)
                elif callable(item):
                    item()
                else:
                    self._taken_rows += len(item)
                    while not item.is_ready():
                        time.sleep(0.01)
                    tables: Sequence[MetricTable] = item.tables()
                    if item.is_windowed and self._completion is not None:
                        tables = self._completion.take(tables)
                    for table in tables:
                        self._spool_table(table, item.is_windowed)
            except Exception as error:  # a full disk or a failing storage device must not stop the training
                lost_rows = 0 if item is None or isinstance(item, dict) or callable(item) else len(item)
                self._lost_points += lost_rows * self._points_a_row
                self.warn("lost", f"points are being lost ({one_line_error(error)}); training continues")
            if item is None:
                self._spool_sample(last=True)
                return
            self._watch_shipper()

    def _spool_completed_rows(self, *, last: bool) -> None:
        if self._completion is not None:
            for table in self._completion.finish() if last else self._completion.take([]):
                self._spool_table(table, is_windowed=True)

    def _spool_table(self, table: MetricTable, is_windowed: bool) -> None:
        self._on_rows(table)
        if is_windowed:
            self._last_step = table.steps[-1]
        self._points_a_row = len(table.columns)
        rows = self._limit_to_quota(clean_table(table), is_windowed)
        self._lost_points += (len(table) - len(rows)) * self._points_a_row
        if rows:
            frame = spool.encode_table(spool.STEPS if is_windowed else spool.EVALUATION, rows)
            self._append_frame(frame, len(rows) * self._points_a_row, critical=not is_windowed)
            self._quota.add_bytes(len(frame))

    def _append_frame(self, frame: bytes, points: int = 0, *, critical: bool) -> None:
        if not self._backlog.append(frame, points, critical=critical):
            why = one_line_error(self._backlog.last_error or "")
            self.warn("spool", f"{self.folder} accepts no points for now ({why}): they wait in memory; training continues")

    def _spool_sample(self, *, last: bool) -> None:
        """Write the sampled metrics, at most once per training step, and not before the first."""
        if self.sampler is None or self._last_step < 0:
            return
        try:
            values = self.sampler(last)
            if values and self._last_step > self._sampled_step:
                self._sampled_step = self._last_step
                columns = {name: [value] for name, value in values.items()}
                now_ms = clean_time(time.time() * 1000)
                self._spool_table(MetricTable([self._last_step], [now_ms], columns), is_windowed=False)
        except Exception as error:
            self.sampler = None
            self.warn("sampler", f"device metrics stop ({one_line_error(error)}); training continues")

    def _limit_to_quota(self, table: MetricTable, is_windowed: bool) -> MetricTable:
        row_interval = self._quota.row_interval() if is_windowed else 0 if self._quota.is_full() else 1
        if row_interval == 1:
            return table
        text = f"{self.folder} has reached its disk quota ({SPOOL_QUOTA_VARIABLE}): some steps are dropped; training continues"
        self.warn("quota", text)
        return table.every_nth_step(row_interval) if row_interval else table.select_rows([])

    def _watch_shipper(self) -> None:
        if time.monotonic() - self._watched_at < 1.0:
            return
        self._watched_at = time.monotonic()
        self._spool_sample(last=False)
        if not self._has_shipper() and self._shipper is not None and (ended := self._shipper.exit_reason()):
            self.warn("ended", f"the shipper process failed with {ended}; training continues, points are kept in {self.folder}")
        if error := self._read_status().get("error"):
            text = f"MLflow at {self._uri} fails ({error}); training continues, points are kept in {self.folder} and sent later"
            self.warn("store", text)
        if self.guard is not None:
            self.guard.poll(self.folder, self._uri, self._status)

    def _has_shipper(self) -> bool:
        """Return whether a shipper process runs. One that has exited is replaced, at most once every ten seconds."""
        if self._shipper is not None and self._shipper.is_alive():
            return True
        if time.monotonic() - self._replaced_at < 10.0:
            return False
        self._replaced_at = time.monotonic()
        return self._acquire_shipper()

    def _acquire_shipper(self) -> bool:
        previous_shipper = self._shipper
        try:
            self._shipper = acquire_shipper(self._uri, self.folder)
        except OSError as error:
            self.warn("shipper", f"points stay in {self.folder}: no process to deliver them ({one_line_error(error)})")
            return False
        if previous_shipper is not None:
            previous_shipper.stop()
        return True


def _make_spool_folder(chosen: str | os.PathLike[str] | None, identity: str) -> Path:
    name = time.strftime("%Y%m%d-%H%M%S-") + identity
    folders = [Path(spool.working_directory(), chosen)] if chosen else spool.default_spool_folders()
    if not chosen and not os.environ.get("ADVISOR_SPOOL"):
        with contextlib.suppress(OSError):  # the home folder is missing or read-only: use the temporary folder
            return _create_private_folder(folders[0] / name)
        folders = folders[-1:]
    return _create_private_folder(folders[0] / name)


def _create_private_folder(path: Path) -> Path:
    path.mkdir(parents=True, mode=0o700)
    return path
