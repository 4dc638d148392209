"""Saves on disk how training processes ended, so that no such exit record is lost if the tracking store or a launcher fails.

A launcher holds a file lock while some of its exit records are not in MLflow. If it ends too early, the next launcher
delivers these records."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from advisor.contract.guard_stop import GuardStop
from advisor.execution.engines.process import Exit
from advisor.execution.job_env import create_private_folder
from advisor.system.atomic import remove_unfinished_files, write_files
from advisor.tracking.stores.location import StoreLocation


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a training process ended, with the reported objective values that MLflow may lack."""

    name: str
    run_id: str
    exit: Exit
    status: str | None = None
    error: str | None = None
    points: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """Maps optimizer steps to (objective value, time of logging in ms since 1970)."""
    stop: GuardStop | None = None


_RECORD_TYPE = TypeAdapter(ExitRecord)


class ExitRecords:
    """The exit records in a folder, written by this launcher and by launchers that no longer run."""

    def __init__(self, folder: Path, location: StoreLocation, experiment: str) -> None:
        # Several tracking stores and experiments may share the folder of records.
        store = hashlib.sha256(f"{location.display} {experiment}".encode()).hexdigest()[:12]
        self.folder, self._suffix = folder, f".{store}.ended.json"
        self.others_have_records = False
        """True if other running launchers had records in the folder at the last call of `read_left_records`."""
        self._own: set[str] = set()
        self._lock: FileLock | None = None

    def keep(self, record: ExitRecord) -> None:
        """Write the exit record to disk. This launcher delivers the record to MLflow, unless `close` is called first."""
        create_private_folder(self.folder)
        self._lock = self._lock or _create_lock_file(self.folder)
        self._own.add(record.name)
        text = json.dumps({"keeper": Path(self._lock.lock_file).name, **asdict(record)})
        write_files({self.folder / f"{record.name}{self._suffix}": text}, sweeps=False)

    def forget(self, name: str) -> None:
        (self.folder / f"{name}{self._suffix}").unlink(missing_ok=True)
        self._own.discard(name)
        if not self._own:
            self.close()

    def close(self) -> None:
        """Release the lock, so that the next launcher delivers the remaining exit records."""
        self._own.clear()
        if self._lock is not None:
            with suppress(OSError):  # Windows removes the file only when its lock is released
                Path(self._lock.lock_file).unlink()
            self._lock.release()
            self._lock = None

    def read_left_records(self) -> Iterator[ExitRecord]:
        """Yield the exit records of launchers that no longer run, and remove their lock files and temporary files."""
        self.others_have_records = False
        for lock in self.folder.glob(".*.lock"):
            _is_lock_held(lock)
        remove_unfinished_files(self.folder)
        for file in sorted(self.folder.glob(f"*{self._suffix}")):
            # OSError: another launcher has already taken the file
            with suppress(ValueError, TypeError, KeyError, OSError, RecursionError):
                content = json.loads(file.read_text(encoding="utf-8"))
                if _is_lock_held(self.folder / Path(str(content.pop("keeper"))).name):
                    self.others_have_records = True
                    continue
                if not file.exists():  # its launcher has delivered the record in the meantime
                    continue
                yield _RECORD_TYPE.validate_python(content)


def _create_lock_file(folder: Path) -> FileLock:
    """Create a lock file. This process holds the lock until it releases the lock or ends."""
    while True:
        lock = FileLock(folder / f".{uuid.uuid4().hex}.lock", mode=0o600, thread_local=False)
        # On a file system without locks, records may be delivered twice, but none is lost.
        with suppress(OSError, NotImplementedError):
            lock.acquire()
        if Path(lock.lock_file).exists():
            return lock
        lock.release()  # another launcher removed the file before we locked it


def _is_lock_held(path: Path) -> bool:
    """Return True if a launcher holds the lock; otherwise, remove the lock file."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            path.unlink(missing_ok=True)
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        pass
    return False
