"""Ends of trainings, kept on disk until MLflow has them, so that an unreachable store or a killed launcher loses none.

A launcher holds a lock while it keeps records. A killed launcher holds none, so the next one delivers its records.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from advisor.execution.engines.process import Exit
from advisor.execution.job_env import make_private
from advisor.system.atomic import sweep, write
from advisor.tracking.stores.location import Location

_SUFFIX = ".ended.json"


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a training ended, and what it reported that MLflow may lack."""

    name: str
    """Name of its job."""
    run_id: str
    exit: Exit
    status: str | None = None
    error: str | None = None
    points: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """Values of the objective and the times they were logged (ms since 1970), by optimizer step."""


class ExitRecords:
    """The records that this launcher keeps in a folder, and those that other launchers left there."""

    def __init__(self, folder: Path, location: Location, experiment: str) -> None:
        # Runs of several stores and experiments may share the folder.
        store = hashlib.sha256(f"{location.display} {experiment}".encode()).hexdigest()[:12]
        self.folder, self._suffix = folder, f".{store}{_SUFFIX}"
        self.others = False
        """Whether other running launchers kept records when `left` last looked."""
        self._own: set[str] = set()
        self._lock: FileLock | None = None

    def keep(self, record: ExitRecord) -> None:
        """Write the record, which this launcher will deliver, unless it is closed before."""
        make_private(self.folder)
        self._lock = self._lock or _new_lock(self.folder)
        self._own.add(record.name)
        keeper = Path(self._lock.lock_file).name
        write({self._file(record.name): json.dumps({"keeper": keeper, **asdict(record)})}, sweeps=False)

    def forget(self, name: str) -> None:
        """Delete the record: MLflow has it."""
        self._file(name).unlink(missing_ok=True)
        self._own.discard(name)
        if not self._own:
            self.close()

    def close(self) -> None:
        """Leave the remaining records to the next launcher."""
        self._own.clear()
        if self._lock is not None:
            with suppress(OSError):  # Windows removes the file at the release only
                Path(self._lock.lock_file).unlink()
            self._lock.release()
            self._lock = None

    def left(self) -> Iterator[ExitRecord]:
        """Yield the records that no running launcher keeps; remove locks and temporary files of killed launchers."""
        self.others = False
        for lock in self.folder.glob(".*.lock"):
            _is_held(lock)
        sweep(self.folder)
        for file in sorted(self.folder.glob(f"*{self._suffix}")):
            with suppress(ValueError, TypeError, KeyError, OSError):  # OSError: another launcher was faster
                content = json.loads(file.read_text(encoding="utf-8"))
                if _is_held(self.folder / Path(str(content.pop("keeper"))).name):
                    self.others = True
                    continue
                if not file.exists():  # its launcher has delivered it in the meantime
                    continue
                points = {int(step): (float(value), int(at)) for step, (value, at) in content.pop("points").items()}
                yield ExitRecord(**{**content, "exit": Exit(**content["exit"]), "points": points})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{self._suffix}"


def _new_lock(folder: Path) -> FileLock:
    """Return a lock on a file of its own, held until it is released or this process ends."""
    while True:
        lock = FileLock(folder / f".{uuid.uuid4().hex}.lock", mode=0o600, thread_local=False)
        # Without locks in the file system, records are delivered twice rather than lost.
        with suppress(OSError, NotImplementedError):
            lock.acquire()
        if Path(lock.lock_file).exists():
            return lock
        lock.release()  # another launcher removed the file before it was locked


def _is_held(path: Path) -> bool:
    """Return whether a launcher holds the lock, and remove its file if not."""
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
