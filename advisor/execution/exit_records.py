"""How trainings ended, on the disk until the record has it: a store that is away, or a killed launcher, loses none.

A launcher holds a lock as long as it keeps endings itself. Nobody can hold it for a launcher that was killed, so the next one sees
whose endings it is to record.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from advisor.execution.engines.process import Ended
from advisor.execution.job_env import make_private
from advisor.system.atomic import sweep, write
from advisor.tracking.stores.location import Location

_SUFFIX = ".ended.json"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a training ended, and what it said that the record may lack."""

    name: str
    """Of its job."""
    run_id: str
    ended: Ended
    status: str | None = None
    error: str | None = None
    points: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """Values of the objective with when they were logged (ms since 1970), by optimizer step."""


class Endings:
    """Those that one launcher keeps in a folder, and those that others left there."""

    def __init__(self, folder: Path, location: Location, experiment: str) -> None:
        """Runs of several stores and experiments may have the same folder."""
        store = hashlib.sha256(f"{location.display} {experiment}".encode()).hexdigest()[:12]
        self.folder, self._suffix = folder, f".{store}{_SUFFIX}"
        self.others = False
        """Whether, at the last look, there were some of launchers that live."""
        self._mine: set[str] = set()
        self._lock: tuple[Path, int] | None = None

    def keep(self, ending: Ending) -> None:
        """Note it: it is this launcher's to record until `close`."""
        make_private(self.folder)
        self._lock = self._lock or _new_lock(self.folder)
        self._mine.add(ending.name)
        file = self._file(ending.name)
        write({file: json.dumps({"keeper": self._lock[0].name, **asdict(ending)})}, sweeps=False)

    def forget(self, name: str) -> None:
        """Drop the note: the record has it."""
        self._file(name).unlink(missing_ok=True)
        self._mine.discard(name)
        if not self._mine:
            self.close()

    def close(self) -> None:
        """What is still kept is for whoever comes next."""
        self._mine.clear()
        if self._lock is not None:
            path, descriptor = self._lock
            self._lock = None
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def left(self) -> Iterator[Ending]:
        """Those whose launcher keeps them no more; what one left that was killed before it kept any is removed."""
        self.others = False
        for lock in self.folder.glob(".*.lock"):
            _held_or_removed(lock)
        sweep(self.folder)
        for file in sorted(self.folder.glob(f"*{self._suffix}")):
            with suppress(ValueError, TypeError, KeyError, OSError):  # OSError: another launcher was faster
                found = json.loads(file.read_text(encoding="utf-8"))
                if _held_or_removed(self.folder / Path(str(found.pop("keeper"))).name):
                    self.others = True
                    continue
                if not file.exists():  # its launcher has recorded it meanwhile
                    continue
                points = {int(step): (float(value), int(at)) for step, (value, at) in found.pop("points").items()}
                yield Ending(**{**found, "ended": Ended(**found["ended"]), "points": points})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{self._suffix}"


def _new_lock(folder: Path) -> tuple[Path, int]:
    """A file that is locked until its descriptor is closed."""
    while True:
        path = folder / f".{uuid.uuid4().hex}.lock"
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        # Where the file system has no locks nobody can tell who lives, and endings are recorded twice rather than lost.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another launcher took it for a dead one's before it was locked


def _held_or_removed(path: Path) -> bool:
    """Whether a launcher holds the lock; the file of one that does not is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
