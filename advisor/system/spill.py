"""Moves large numeric columns to temporary memory-mapped files, which the system deletes with the last array on them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.model.errors import AdvisorError

ColumnArrays = tuple[NDArray[Any], ...]
"""Columns of a table, shape (n,) each."""
MAX_POINTS_IN_MEMORY = 10_000_000
"""Maximum number of points of a study in memory; each point takes 32 bytes."""
_MIN_FILE_POINTS = 20_000


def move_columns_to_file(columns: ColumnArrays, *, fits: bool) -> ColumnArrays:
    """Move long columns to a file unless the study `fits` into memory. Raises AdvisorError if the file cannot be written."""
    return columns if fits or len(columns[0]) < _MIN_FILE_POINTS else move_tables_to_file([columns])[0]


def move_tables_to_file(tables: Sequence[ColumnArrays]) -> list[ColumnArrays]:
    """Move tables with the same column types to one file; return read-only arrays. Raises AdvisorError if that fails."""
    if os.name != "posix":  # Windows cannot delete an open file
        return list(tables)
    # /tmp is in memory on many systems.
    disk_folder = Path("/var/tmp")  # noqa: S108 - the files there have no names
    folder = Path(tempfile.gettempdir()) if "TMPDIR" in os.environ or not os.access(disk_folder, os.W_OK) else disk_folder
    try:
        return _map_through_file(tables, folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AdvisorError(
            f"cannot write the study's curves, which are too large for memory, to {folder}: {reason}; set TMPDIR to another folder"
        ) from error


def _map_through_file(tables: Sequence[ColumnArrays], folder: Path) -> list[ColumnArrays]:
    import pyarrow as pa

    names = [str(i) for i in range(len(tables[0]))]
    batches = [pa.record_batch([pa.array(column) for column in columns], names=names) for columns in tables]
    with tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        # The memory map of Arrow stays valid after both files are closed, so columns use no file descriptors.
        with pa.memory_map(f"/dev/fd/{file.fileno()}") as mapped:
            reader = pa.ipc.open_file(mapped)
            mapped_batches = [reader.get_batch(i) for i in range(len(tables))]
    return [tuple(column.to_numpy() for column in batch.columns) for batch in mapped_batches]


def fits_in_memory(counts: Sequence[int]) -> bool:
    return int(np.sum(counts, dtype=np.int64)) <= MAX_POINTS_IN_MEMORY
