"""Moves large numeric columns from memory to temporary memory-mapped files.

The files have no names, so the system deletes a file with the last array that uses it, even if the process is killed. The
operating system keeps the files' pages in memory only while memory is free.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.model.errors import AdvisorError

Columns = tuple[NDArray[Any], ...]
"""Arrays of shape (n,), one per column."""
MAX_POINTS_IN_MEMORY = 10_000_000
"""Maximum number of points of a study to keep in memory; each point takes 32 bytes."""
_MIN_FILE_POINTS = 20_000
"""Minimum number of points of a metric for its columns to be moved to a file."""


def move_to_file(columns: Columns, *, fits: bool) -> Columns:
    """Move columns to a file, and return them as read-only arrays. If `fits` is True or the columns are short, they are
    returned unchanged.

    fits: True if the whole study fits into memory. Raises AdvisorError if the file cannot be written.
    """
    return columns if fits or len(columns[0]) < _MIN_FILE_POINTS else move_all_to_file([columns])[0]


def move_all_to_file(tables: Sequence[Columns]) -> list[Columns]:
    """Move tables whose columns have the same types to one file, and return them as read-only arrays. Raises AdvisorError if
    the file cannot be written."""
    if os.name != "posix":  # on Windows, an open file cannot be deleted
        return list(tables)
    folder = _temporary_folder()
    try:
        return _map_through_file(tables, folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AdvisorError(
            f"cannot write the study's curves, which are too large for memory, to {folder}: {reason}; set TMPDIR to another folder"
        ) from error


def _map_through_file(tables: Sequence[Columns], folder: Path) -> list[Columns]:
    import pyarrow as pa

    names = [str(i) for i in range(len(tables[0]))]
    batches = [pa.record_batch([pa.array(column) for column in columns], names=names) for columns in tables]
    with tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        # Arrow's memory map stays valid after both files are closed, so the columns use no file descriptors.
        with pa.memory_map(f"/dev/fd/{file.fileno()}") as mapped:
            reader = pa.ipc.open_file(mapped)
            mapped_batches = [reader.get_batch(i) for i in range(len(tables))]
    return [tuple(column.to_numpy() for column in batch.columns) for batch in mapped_batches]


def _temporary_folder() -> Path:
    """Return a folder for temporary files that is on disk, because on many systems /tmp is in memory."""
    large = Path("/var/tmp")  # noqa: S108 - the files there have no names
    return Path(tempfile.gettempdir()) if "TMPDIR" in os.environ or not os.access(large, os.W_OK) else large


def fits_in_memory(counts: Sequence[int]) -> bool:
    """Return whether the points of a study may stay in memory. counts: number of points of each metric."""
    return int(np.sum(counts, dtype=np.int64)) <= MAX_POINTS_IN_MEMORY
