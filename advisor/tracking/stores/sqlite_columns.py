"""Points of MLflow's SQLite file by a driver that fills whole columns, where it is installed: for half of what rows take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.tracking.stores import database

if TYPE_CHECKING:
    import pyarrow

_BATCH = "adbc.sqlite.query.batch_rows"
_ROWS = 65_536
_POINTS = """
    SELECT w.key, k.i, m.step, ifnull(m.value, 0.0), ifnull(m.timestamp, 0), m.is_nan OR m.value IS NULL
    FROM json_each(?) w CROSS JOIN metrics m INDEXED BY index_metrics_run_uuid ON m.run_uuid = w.value
    CROSS JOIN wanted_metric k ON k.name = m.key
"""


class Failed(Exception):  # noqa: N818 - whoever asked asks another driver, which says what is wrong
    """The driver is not installed, or does not get on with the file."""


class Reader:
    """A connection of its own to the file. Raises Failed."""

    def __init__(self, uri: str, metrics: Sequence[str], *, wait_s: float) -> None:
        """uri: as SQLite takes it, which says that nothing is written. wait_s: how long for a program that is writing."""
        self._metrics = len(metrics)
        with _failing(), ExitStack() as opened:
            _check_plain(metrics)
            import adbc_driver_manager
            import adbc_driver_sqlite

            self._statement = adbc_driver_manager.AdbcStatement
            self._connection: Any = opened.enter_context(
                adbc_driver_manager.AdbcConnection(opened.enter_context(adbc_driver_sqlite.connect(uri)))
            )
            self._do(f"PRAGMA busy_timeout = {1000 * wait_s:.0f}")
            self._do("PRAGMA temp_store = MEMORY")
            self._do("CREATE TEMP TABLE wanted_metric (name TEXT PRIMARY KEY, i INTEGER NOT NULL) WITHOUT ROWID")
            self._do("INSERT INTO wanted_metric SELECT value, key FROM json_each(?)", json.dumps(list(metrics)))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """End the connection."""
        self._opened.close()

    def block(self, start: int, ids: Sequence[str]) -> database.Block:
        """The points of runs of these ids, the first of which is number `start`; of none where an id is empty. Raises Failed."""
        with _failing(), self._statement(self._connection) as statement:
            _check_plain(ids)
            statement.set_options(**{_BATCH: str(_ROWS)})
            statement.set_sql_query(_POINTS)
            statement.bind(_text(json.dumps(list(ids))))
            found = np.concatenate([np.empty(0, database.POINT), *map(self._points, _batches(statement))])
        found["group"] += start * self._metrics
        return found

    def _points(self, batch: pyarrow.RecordBatch) -> database.Block:
        run, metric, step, value, time, missing = (column.to_numpy() for column in batch.columns)
        if any(column.dtype != np.int64 for column in (run, metric, step, time)) or value.dtype != np.float64:
            raise TypeError("a column that holds other things than the numbers it is for")
        points = np.empty(len(batch), database.POINT)
        points["group"], points["step"], points["time"] = run * self._metrics + metric, step, time
        points["value"] = np.where(missing, np.nan, value)
        return points

    def _do(self, sql: str, text: str | None = None) -> None:
        with self._statement(self._connection) as statement:
            statement.set_sql_query(sql)
            if text is not None:
                statement.bind(_text(text))
            statement.execute_update()


@contextmanager
def _failing() -> Iterator[None]:
    """Whatever the driver or the columns say is Failed."""
    try:
        yield
    except Exception as error:
        raise Failed(str(error)) from error


def _check_plain(names: Iterable[str]) -> None:
    """Raise where SQLite's JSON may not give a name back as it was."""
    if not all(map(str.isprintable, names)):
        raise ValueError("a name with control characters")


def _text(text: str) -> Any:
    """One row of one text."""
    import pyarrow

    return pyarrow.record_batch([pyarrow.array([text])], names=["text"])


def _batches(statement: Any) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    stream, _ = statement.execute_query()
    yield from pyarrow.RecordBatchReader.from_stream(stream)
