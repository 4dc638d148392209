"""Writes files atomically: each file is replaced completely or not at all, even if the disk is full or the process is killed."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":  # Windows has no locks on folders, so temporary files of killed processes stay there
    import fcntl

UNFINISHED_SUFFIX = ".advisor-unfinished"


def write_files(texts: Mapping[Path, str], *, durable: bool = True, sweeps: bool = True) -> None:
    """Replace files in the given order, after all contents have been written to temporary files beside them. File modes are
    preserved; the folders must exist. durable: survive a power failure. sweeps: first remove temporary files of killed
    processes. Raises OSError; if the disk is full, no file is changed."""
    with ExitStack() as stack:
        for folder in sorted({path.parent for path in texts}):
            stack.enter_context(_lock_folder(folder, sweeps=sweeps))
        temporary_files: dict[Path, Path] = {}
        try:
            for path, text in texts.items():
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED_SUFFIX)
                temporary_files[path] = Path(name)
                with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                    file.write(text)
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
                temporary_files[path].chmod(_file_mode(path))
            for path, temporary in temporary_files.items():
                temporary.replace(path)
        finally:
            for temporary in temporary_files.values():
                temporary.unlink(missing_ok=True)


def _file_mode(path: Path) -> int:
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)  # a new file gets the default permissions, because `mkstemp` creates private files
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def _lock_folder(folder: Path, *, sweeps: bool) -> Iterator[None]:
    """Hold a lock on a folder, so that other processes do not remove this process's temporary files."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if sweeps:
            with suppress(OSError):  # another process writes to the folder, or its file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in folder.glob(f".*{UNFINISHED_SUFFIX}"):
                    path.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; the folder need not exist."""
    with suppress(OSError), _lock_folder(folder, sweeps=True):
        pass
