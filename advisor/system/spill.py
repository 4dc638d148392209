"""Moves large numeric columns from memory to temporary memory-mapped files.

The files have no names, so each is freed with the last array that uses it, even if the process is killed. The operating
system keeps their pages in memory only while there is free memory.
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
"""Arrays of the same shape (n,), one per column."""
MAX_POINTS_IN_MEMORY = 10_000_000
"""Maximum number of points of a study that stay in memory; each takes 32 bytes."""
_MIN_FILE_POINTS = 20_000
"""Minimum number of points of a metric for its columns to be moved to a file."""


def move_to_file(columns: Columns, *, fits: bool) -> Columns:
    """Move columns to a file and return them read-only. Columns are returned unchanged if `fits` is True or if they are short.

    fits: True if the whole study fits into memory. Raises AdvisorError if the file cannot be written.
    """
    return columns if fits or len(columns[0]) < _MIN_FILE_POINTS else move_all_to_file([columns])[0]


def move_all_to_file(tables: Sequence[Columns]) -> list[Columns]:
    """Move tables with equal column types to one file and return them read-only. Raises AdvisorError if writing fails."""
    if os.name != "posix":  # Windows cannot delete an open file
        return list(tables)
    folder = _temporary_folder()
    try:
        return _map_through_file(tables, folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AdvisorError(
            f"cannot keep the study's curves, which are too many for memory, in {folder}: {reason}; set TMPDIR to another folder"
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
        # Arrow's memory map stays valid after both files are closed, so columns use no file descriptors.
        with pa.memory_map(f"/dev/fd/{file.fileno()}") as mapped:
            reader = pa.ipc.open_file(mapped)
            mapped_batches = [reader.get_batch(i) for i in range(len(tables))]
    return [tuple(column.to_numpy() for column in batch.columns) for batch in mapped_batches]


def _temporary_folder() -> Path:
    """Return a folder for temporary files that is on disk, because /tmp is in memory on many systems."""
    large = Path("/var/tmp")  # noqa: S108 - the files there have no names
    return Path(tempfile.gettempdir()) if "TMPDIR" in os.environ or not os.access(large, os.W_OK) else large


def fits_in_memory(counts: Sequence[int]) -> bool:
    """Return True if a study stays in memory. counts: number of points of each metric."""
    return int(np.sum(counts, dtype=np.int64)) <= MAX_POINTS_IN_MEMORY
