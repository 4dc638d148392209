"""Columns of numbers, in memory as long as they are few, beyond that in files without a name.

Such a file is gone with the last array that lies in it, however the program ends. What is read of it, the system keeps in memory
as long as there is room.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from advisor.model.errors import AdvisorError

Column = NDArray[Any]
"""Shape (n,), 8 bytes a number."""
FEW = 10_000_000
"""Points of a study that are held in memory, of 32 bytes each."""
_AT_ONCE = 2_000_000
"""Points that are worked on at once."""
_WORTH_A_FILE = 20_000
"""Points of a metric that are: a file takes a descriptor for as long as it is used."""


def joined(parts: Iterable[tuple[Column, ...]], *, most: int, few: bool) -> tuple[Column, ...]:
    """The columns of which `parts`, at least one, are portions; in a file unless they are few, and never to be written to.

    most: no fewer points than they have in all. Raises AdvisorError where the disk is full.
    """
    if few or most < _WORTH_A_FILE:
        return _in_memory(parts)
    with _file() as file:
        if file is None:
            return _in_memory(parts)
        points, dtypes = 0, []
        for part in parts:
            for place, column in enumerate(part):
                file.seek(8 * (place * most + points))
                file.write(np.ascontiguousarray(column).data)
            points, dtypes = points + len(part[0]), [column.dtype for column in part]
        numbers = _mapped(file)
    return tuple(numbers[i * most : i * most + points].view(dtype) for i, dtype in enumerate(dtypes))


def filed(columns: Sequence[Column]) -> list[Column]:
    """Columns of any lengths in one file, not to be written to. Raises AdvisorError where the disk is full."""
    with _file() as file:
        if file is None:
            return list(columns)
        for column in columns:
            file.write(np.ascontiguousarray(column).data)
        numbers = _mapped(file)
    ends = np.cumsum([len(c) for c in columns])
    return [numbers[end - len(c) : end].view(c.dtype) for c, end in zip(columns, ends, strict=True)]


def portions(owners: Column) -> Iterator[slice]:
    """Slices of columns, together all of them, to work on one after the other, each with whole owners if these ascend, else all."""
    start, count = 0, len(owners)
    if count <= _AT_ONCE or (owners[1:] < owners[:-1]).any():
        yield slice(0, count)
        return
    while start < count:
        end = min(start + _AT_ONCE, count)
        stop = end if end == count else int(np.searchsorted(owners, owners[end]))
        if stop <= start:  # one owner has more
            stop = int(np.searchsorted(owners, owners[start], side="right"))
        yield slice(start, stop)
        start = stop


def _in_memory(parts: Iterable[tuple[Column, ...]]) -> tuple[Column, ...]:
    first, *rest = parts
    return tuple(np.concatenate(column) for column in zip(first, *rest, strict=True)) if rest else first


@contextmanager
def _file() -> Iterator[BinaryIO | None]:
    """A file without a name; None where there should be none more."""
    # Not on Windows, where a file has a name for as long as it is open.
    if os.name != "posix" or not _is_affordable():
        yield None
        return
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            yield file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AdvisorError(
            f"cannot keep the study's curves, which are too many for memory, in {folder}: {reason}; let TMPDIR name another folder"
        ) from error


def _is_affordable() -> bool:
    """Whether at least half of the files that this process may have open are left for others."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return most == resource.RLIM_INFINITY or 2 * len(os.listdir("/dev/fd")) < most
    except OSError:  # not even this one
        return False


def _folder() -> Path:
    """Where large files may lie for a while: /tmp is in memory on many systems."""
    large = Path("/var/tmp")  # noqa: S108 - the files there have no name
    return Path(tempfile.gettempdir()) if "TMPDIR" in os.environ or not os.access(large, os.W_OK) else large


def _mapped(file: BinaryIO) -> NDArray[np.int64]:
    """All numbers of the file."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        return np.empty(0, np.int64)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.int64)
