"""Columns of numbers, in memory as long as they are few, beyond that in files without a name.

Such a file is gone with the last array that lies in it, however the program ends. What is read of it, the system keeps in memory
as long as there is room.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from advisor.errors import AdvisorError

Column = NDArray[Any]
FEW = 10_000_000
"""Points of a study that are held in memory, of 32 bytes each."""
_AT_ONCE = 2_000_000
"""Points that are worked on at once."""
_CAN = os.name == "posix"
"""Elsewhere a file has a name for as long as it is open."""


def joined(parts: Iterable[tuple[Column, ...]], *, few: bool) -> tuple[Column, ...]:
    """The columns of which `parts`, at least one, are portions; in files, and not to be written to, unless they are few.

    Raises AdvisorError where the disk is full.
    """
    if few or not _CAN:
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    rest = iter(parts)
    first = next(rest)
    with ExitStack() as files:
        each = [files.enter_context(_file()) for _ in first]
        for part in chain([first], rest):
            for file, column in zip(each, part, strict=True):
                _write(file, column)
        return tuple(_mapped(file, column.dtype) for file, column in zip(each, first, strict=True))


def filed(columns: Sequence[Column]) -> list[Column]:
    """Columns of 8 bytes a number, of any lengths, in one file. Raises AdvisorError where the disk is full."""
    if not _CAN:
        return list(columns)
    with _file() as file:
        for column in columns:
            _write(file, column)
        numbers = _mapped(file, np.dtype(np.int64))
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


def _folder() -> Path:
    """Where large files may lie for a while: /tmp is in memory on many systems."""
    large = Path("/var/tmp")  # noqa: S108 - the files there have no name
    return Path(tempfile.gettempdir()) if "TMPDIR" in os.environ or not os.access(large, os.W_OK) else large


@contextmanager
def _file() -> Iterator[BinaryIO]:
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            yield file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AdvisorError(
            f"cannot keep the study's curves, which are too many for memory, in {folder}: {reason}; let TMPDIR name another folder"
        ) from error


def _write(file: BinaryIO, column: Column) -> None:
    file.write(np.ascontiguousarray(column).data)


def _mapped(file: BinaryIO, dtype: np.dtype[Any]) -> Column:
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        return np.empty(0, dtype)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
