"""Reads points from SQLite column by column, in half the time, if the package adbc-driver-sqlite is installed.

The driver contains a second copy of the SQLite library. Closing a file releases all POSIX locks of the process on that file,
including the first copy's locks. Therefore the driver runs in a child process, which sends the points as an Arrow stream.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.tracking.stores import database

if TYPE_CHECKING:
    import pyarrow

_CHILD = Path(__file__).with_name("sqlite_columns_child.py")


class ColumnReaderError(Exception):
    """The child process that reads columns from SQLite failed."""


def is_installed() -> bool:
    """Return True if the package adbc-driver-sqlite is installed."""
    return bool(find_spec("adbc_driver_sqlite")) and bool(sys.executable)


def read_blocks(
    uri: str, timeout_s: float, metrics: list[str], ids: list[str], done: int, size: int
) -> Iterator[tuple[int, database.Block]]:
    """Yield `Database.blocks` of `size` runs each. done: index of the first run to read. Raises ColumnReaderError."""
    starts = range(done, len(ids), size)
    request = {"uri": uri, "timeout_s": timeout_s, "metrics": metrics, "parts": [ids[i : i + size] for i in starts]}
    try:
        import pyarrow as pa

        with _child(request) as stream, pa.ipc.open_stream(stream) as batches:
            for start, batch in zip(starts, batches, strict=True):
                yield min(start + size, len(ids)), _block(batch, start, len(metrics))
    except (OSError, ValueError, ImportError) as error:  # Arrow's exceptions are subclasses of ValueError
        raise ColumnReaderError from error


@contextmanager
def _child(request: dict[str, Any]) -> Iterator[Any]:
    """Yield the output stream of the child process, and end the process when the block ends."""
    # Run the file as a script: `-m` would import the whole package, which takes half a second.
    command = [sys.executable, "-P", str(_CHILD)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(json.dumps(request).encode())
            yield process.stdout
        finally:
            process.kill()


def _block(batch: pyarrow.RecordBatch, start: int, metrics: int) -> database.Block:
    run, metric, step, value, time, is_nan = (column.to_numpy() for column in batch.columns)
    block = np.empty(len(batch), database.POINT)
    block["group"], block["step"], block["time"] = (run + start) * metrics + metric, step, time
    block["value"] = np.where(is_nan, np.nan, value)
    return block
