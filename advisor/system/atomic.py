"""Files that are there whole or not at all, also where the disk is full or the process is killed in the middle."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":  # where there are no such locks, and what killed processes leave aside stays
    import fcntl

UNFINISHED = ".advisor-unfinished"
"""How the names of files end that are being written."""


def write(texts: Mapping[Path, str], *, durable: bool = True, sweeps: bool = True) -> None:
    """Replace files, in this order, once all of them are written beside the old ones, whose modes they keep; their folders exist.

    durable: they are on the disk, should the machine lose its power. sweeps: what killed processes left aside is removed before,
    which looks through the folders. Raises OSError; where it is for lack of room, all files are as they were.
    """
    with ExitStack() as stack:
        for folder in sorted({path.parent for path in texts}):
            stack.enter_context(_in(folder, sweeps=sweeps))
        staged: dict[Path, Path] = {}
        try:
            for path, text in texts.items():
                _stage(path, text, staged, durable=durable)
            for path, temporary in staged.items():
                temporary.replace(path)
        finally:
            for temporary in staged.values():
                temporary.unlink(missing_ok=True)


def _stage(path: Path, text: str, staged: dict[Path, Path], *, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    staged[path] = Path(temporary)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    Path(temporary).chmod(_mode(path))


def _mode(path: Path) -> int:
    """Who may read and write it; where it is new, whoever may a new file, while mkstemp makes some that only their owner may."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    return 0o666 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@contextmanager
def _in(folder: Path, *, sweeps: bool) -> Iterator[None]:
    """Within it nobody takes what is written aside in the folder for a killed process's.

    sweeps: what such left is removed before.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if sweeps:
            with suppress(OSError):  # others write there now, or the file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in folder.glob(f".*{UNFINISHED}"):
                    path.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what killed processes left aside in a folder, if it is there."""
    with suppress(OSError), _in(folder, sweeps=True):
        pass
