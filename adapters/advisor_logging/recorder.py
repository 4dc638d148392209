"""Records one run: takes points from the training thread, spools them in a thread of its own, starts the shipper, ends the run."""

from __future__ import annotations

import contextlib
import getpass
import logging
import math
import os
import queue
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from advisor.contract.redact import learn, learn_arguments, one_line, redact, redact_value
from advisor_logging.disk_quota import DEFAULT_MB, VARIABLE, DiskQuota, read_limit
from advisor_logging.limits import clean_name, clean_table, clean_text, clean_time
from advisor_logging.shipper import RETRY_S
from advisor_logging.shipper_process import ShipperProcess, acquire
from advisor_logging.spool import (
    EVALUATION,
    STEPS,
    SpoolWriter,
    default_folders,
    encode_event,
    encode_table,
    read_json,
    remove,
    write_json,
)
from advisor_logging.table import Completion, Table

logger = logging.getLogger("advisor")

MAX_WAITING_ROWS = 50_000
"""Maximum rows in memory. If the disk hangs, further rows are counted as lost."""
CLOSE_POLL_S = 0.01
IDLE_S = 1.0
COMPLETION_IDLE_S = 0.25
"""Seconds that the writer thread sleeps without input; fewer if it holds rows back, which a kill would lose."""
NEW_RUN = "new"
"""A `run_id` that always creates a run, whatever MLflow's variables and active run are."""


Sampler = Callable[[bool], Mapping[str, float] | None]
"""Returns metrics of this moment if any are due. Called about once a second in the writer thread, and with True at the end."""


class Chunk(Protocol):
    """Values of some steps on their way from a device."""

    windowed: bool
    """Whether the rows are training steps, to be reduced to windows, or evaluations, stored unchanged."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def ready(self) -> bool:
        """Return whether the values have arrived, without waiting."""

    def tables(self) -> list[Table]:
        """Return the rows. Called once, in the writer thread, when ready."""


@dataclass(frozen=True)
class RunSettings:
    """Which run to write, and where; see `TuningLogger`."""

    experiment: str | None = None
    run_name: str | None = None
    run_id: str | None = None
    """None: MLFLOW_RUN_ID or the active run of the process, if any; NEW_RUN: always a new run."""
    tracking_uri: str | None = None
    spool: str | os.PathLike[str] | None = None
    begun_by: str | None = None
    """Continue the run of the spool with this identity, if the run's id never became known."""


class Recorder:
    """Records one run. Only `drain` and `close` make the caller wait for disk or store."""

    def __init__(
        self, settings: RunSettings, on_rows: Callable[[Table], None], completion: Completion | None = None
    ) -> None:
        """Open a spool and acquire a shipper. The writer thread calls `on_rows` with all rows, after `completion`.

        Raises OSError if no spool can be written.
        """
        self._on_rows, self._completion = on_rows, completion
        self._uri = resolve_tracking_uri(settings.tracking_uri)
        learn(self._uri)
        learn_arguments(map(clean_text, [*sys.argv, *sys.orig_argv]))
        self.id = uuid.uuid4().hex[:12]
        self.folder = _make_folder(settings.spool, self.id)
        write_json(self.folder / "run.json", _describe(settings, self.id, self._uri))
        self._warned: set[str] = set()
        self._quota = DiskQuota(self.folder, self._disk_limit())
        self._spool = SpoolWriter(self.folder, self._quota.segment_bytes)
        self._queue: queue.SimpleQueue[Chunk | dict[str, Any] | None] = queue.SimpleQueue()
        self._queued_rows = self._taken_rows = 0
        self._lost_points = 0
        self._points_a_row = 1
        self._last_step = self._sampled_step = -1
        self.sampler: Sampler | None = None
        self._status: dict[str, Any] = {}
        self._watched_at = self._replaced_at = -math.inf
        self._shipper: ShipperProcess | None = None
        self._acquire_shipper()
        self._thread = threading.Thread(target=self._write, name="advisor-writer", daemon=True)
        self._thread.start()

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        if self._queued_rows - self._taken_rows > MAX_WAITING_ROWS:
            self._lost_points += len(chunk) * self._points_a_row
            self.warn("full", f"points are being lost: {self.folder} accepts no more writes")
            return
        self._queued_rows += len(chunk)
        self._queue.put(chunk)

    def note(self, *, tags: Mapping[str, object] | None = None, params: Mapping[str, object] | None = None) -> None:
        """Queue tags and hyperparameters, as texts that every store accepts."""
        event = {"tags": tags or {}, "params": params or {}}
        self._queue.put({kind: _clean(texts) for kind, texts in event.items()})

    def count_lost(self, points: int) -> None:
        """Count points that never reached this recorder as lost."""
        self._lost_points += points

    def warn(self, key: str, message: str) -> None:
        """Log one line, once per `key`."""
        if key not in self._warned:
            self._warned.add(key)
            logger.warning("advisor: %s", redact(message))

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None until the shipper has opened it."""
        run_id = self._read_status().get("run_id")
        return None if run_id is None else str(run_id)

    def drain(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until all queued data is on disk. Nothing may be queued afterwards."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.warn("drain", f"the last points were not written to disk within {timeout_s:g} s")

    def close(self, mlflow_status: str, tags: Mapping[str, str], timeout_s: float) -> None:
        """End the run after `drain`. Wait at most `timeout_s` for the store; if it lacks data then, log where that data is."""
        tags = {clean_name(name): redact(clean_text(value)) for name, value in tags.items()}
        if self._lost_points:
            from advisor import contract

            tags[contract.TAG_LOST_POINTS] = str(self._lost_points)
        end = {"status": mlflow_status, "time_ms": clean_time(time.time() * 1000), "tags": tags}
        try:
            self._spool.append(encode_event({"end": end}), critical=True)
            self._spool.close()
        except OSError as error:
            self.warn("spool", f"the end of the run could not be written to {self.folder} ({one_line(error)})")
        if self._is_delivered(timeout_s) and self._shipper is not None:
            if note := self._status.get("note"):
                self.warn("note", str(note))
            remove(self.folder)
            self._shipper.release()
            return
        self._warn_undelivered(timeout_s)
        if self._shipper is not None:
            self._shipper.stop()

    def _warn_undelivered(self, timeout_s: float) -> None:
        by_hand = f"`advisor sync {self.folder}` delivers them"
        place = f"points are kept in {self.folder}"
        why = self._status.get("error")
        if self._shipper is None:
            self.warn("left", f"no process could be started to deliver to MLflow at {self._uri}; {place}: {by_hand}")
        elif ended := self._shipper.exit_reason():
            self.warn("left", f"the shipper process failed with {ended}; {place}: {by_hand}")
        else:
            self.warn(
                "left",
                f"MLflow at {self._uri} did not store everything within {timeout_s:g} s ({why or 'it is slow'}); {place}: "
                f"a background process retries for {RETRY_S / 60:g} minutes; after that, {by_hand}",
            )

    def _is_delivered(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._read_status().get("delivered"):
            if time.monotonic() > deadline or not self._has_shipper():
                return False
            time.sleep(CLOSE_POLL_S)
        return True

    def _read_status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            self._status = read_json(self.folder / "status.json") or self._status
        return self._status

    # The methods below run in the writer thread.

    def _write(self) -> None:
        idle_s = IDLE_S if self._completion is None else COMPLETION_IDLE_S
        while True:
            try:
                item = self._queue.get(timeout=idle_s)
            except queue.Empty:
                item = {}
            try:
                if item is None or item == {}:
                    self._complete(last=item is None)
                elif isinstance(item, dict):
                    self._spool.append(encode_event(item), critical=True)
                else:
                    self._taken_rows += len(item)
                    self._take(item)
            except Exception as error:  # a full disk or a broken device must not stop the training
                self._lost_points += 0 if item is None or isinstance(item, dict) else len(item) * self._points_a_row
                self.warn("spool", f"points are being lost ({one_line(error)}); training goes on")
            if item is None:
                self._sample(last=True)
                return
            self._watch()

    def _take(self, chunk: Chunk) -> None:
        while not chunk.ready():
            time.sleep(0.01)
        tables: Sequence[Table] = chunk.tables()
        if chunk.windowed and self._completion is not None:
            tables = self._completion.take(tables)
        for table in tables:
            self._spool_table(table, chunk.windowed)

    def _complete(self, *, last: bool) -> None:
        """Spool the rows that no longer need to wait for other ranks."""
        if self._completion is not None:
            for table in self._completion.finish() if last else self._completion.take([]):
                self._spool_table(table, windowed=True)

    def _spool_table(self, table: Table, windowed: bool) -> None:
        self._on_rows(table)
        if windowed:
            self._last_step = table.steps[-1]
        self._points_a_row = len(table.columns)
        rows = self._limit_to_quota(clean_table(table), windowed)
        self._lost_points += (len(table) - len(rows)) * self._points_a_row
        if rows:
            frame = encode_table(STEPS if windowed else EVALUATION, rows)
            self._spool.append(frame, critical=not windowed)
            self._quota.add(len(frame))

    def _sample(self, *, last: bool) -> None:
        """Spool the sampler's values at the last step; nothing before the first step or twice for the same one."""
        if self.sampler is None or self._last_step < 0:
            return
        try:
            values = self.sampler(last)
            if values and self._last_step > self._sampled_step:
                self._sampled_step = self._last_step
                columns = {name: [value] for name, value in values.items()}
                now_ms = clean_time(time.time() * 1000)
                self._spool_table(Table([self._last_step], [now_ms], columns), windowed=False)
        except Exception as error:
            self.sampler = None
            self.warn("sampler", f"device metrics stop ({one_line(error)}); training goes on")

    def _limit_to_quota(self, table: Table, windowed: bool) -> Table:
        every = self._quota.row_interval() if windowed else 0 if self._quota.is_full() else 1
        if every == 1:
            return table
        self.warn(
            "quota", f"{self.folder} has reached its disk quota ({VARIABLE}): some steps are dropped; training goes on"
        )
        return table.every(every) if every else table.only([])

    def _disk_limit(self) -> int:
        try:
            return read_limit()
        except ValueError as error:
            self.warn(VARIABLE, str(error))
            return int(DEFAULT_MB * 2**20)

    def _watch(self) -> None:
        """Once a second: sample, log problems that the shipper reports, replace it if it has exited."""
        if time.monotonic() - self._watched_at < 1.0:
            return
        self._watched_at = time.monotonic()
        self._sample(last=False)
        if not self._has_shipper() and self._shipper is not None and (ended := self._shipper.exit_reason()):
            self.warn(
                "ended", f"the shipper process failed with {ended}; training goes on, points are kept in {self.folder}"
            )
        if error := self._read_status().get("error"):
            self.warn(
                "store",
                f"MLflow at {self._uri} fails ({error}); training goes on, points are kept in {self.folder} and sent later",
            )

    def _has_shipper(self) -> bool:
        """Return whether a shipper runs; an exited one is replaced at most every ten seconds."""
        if self._shipper is not None and self._shipper.is_alive():
            return True
        if time.monotonic() - self._replaced_at < 10.0:
            return False
        self._replaced_at = time.monotonic()
        return self._acquire_shipper()

    def _acquire_shipper(self) -> bool:
        before = self._shipper
        try:
            self._shipper = acquire(self._uri, self.folder)
        except OSError as error:
            self.warn("shipper", f"points stay in {self.folder}: no process to deliver them ({one_line(error)})")
            return False
        if before is not None:
            before.stop()
        return True


def _clean(texts: Mapping[str, object]) -> dict[str, str]:
    return {clean_name(name): redact_value(clean_text(value)) for name, value in texts.items()}


def resolve_tracking_uri(explicit: str | None) -> str:
    """Return the store's address: as configured, as MLflow would choose it, or an SQLite file in the working directory."""
    uri = explicit or os.environ.get("MLFLOW_TRACKING_URI")
    mlflow = sys.modules.get("mlflow")  # never imported here
    if uri is None and mlflow is not None and mlflow.is_tracking_uri_set():
        uri = str(mlflow.get_tracking_uri())
    uri = uri or "sqlite:///mlflow.db"
    prefix = "sqlite:///"
    if uri.startswith(prefix) and not uri.startswith(prefix + "/"):
        uri = prefix + str(Path(uri.removeprefix(prefix)).absolute())
    return uri


def _active_run(uri: str) -> str | None:
    """Return the id of MLflow's active run in this process, if it belongs to the store at `uri`."""
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    if mlflow is None or active is None or resolve_tracking_uri(mlflow.get_tracking_uri()) != uri:
        return None
    return str(active.info.run_id)


def _describe(settings: RunSettings, identity: str, uri: str) -> dict[str, Any]:
    """Return `run.json`: all that a delivery needs, also days later, except passwords."""
    run_id, ends_run = settings.run_id or os.environ.get("MLFLOW_RUN_ID"), True
    if settings.run_id == NEW_RUN:
        run_id = None
    elif run_id is None and settings.begun_by is None and (active := _active_run(uri)) is not None:
        run_id, ends_run = active, False  # the code that started it ends it
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    script = clean_text(sys.argv[0] if sys.argv else "")
    source = {"mlflow.user": clean_text(user), "mlflow.source.name": script, "mlflow.source.type": "LOCAL"}
    experiment = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return {
        "spool": settings.begun_by or identity,
        "identity": identity,
        "continues": bool(run_id or settings.begun_by),
        "experiment": None if experiment is None else clean_text(experiment),
        "experiment_id": None if settings.experiment else os.environ.get("MLFLOW_EXPERIMENT_ID"),
        "run_id": run_id,
        "run_name": None if settings.run_name is None else clean_name(settings.run_name),
        "ends_run": ends_run,
        "start_ms": clean_time(time.time() * 1000),
        "tracking_uri": redact(uri),
        "cwd": os.getcwd(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "source_tags": source,
    }


def _make_folder(chosen: str | os.PathLike[str] | None, identity: str) -> Path:
    """Create a folder that only this user can access, named by time and identity."""
    name = time.strftime("%Y%m%d-%H%M%S-") + identity
    folders = [Path(chosen).absolute()] if chosen else default_folders()
    if not chosen and not os.environ.get("ADVISOR_SPOOL"):
        with contextlib.suppress(OSError):  # no home folder, or a read-only one: use the temporary folder
            return _new_folder(folders[0] / name)
        folders = folders[-1:]
    return _new_folder(folders[0] / name)


def _new_folder(path: Path) -> Path:
    path.mkdir(parents=True, mode=0o700)
    return path
