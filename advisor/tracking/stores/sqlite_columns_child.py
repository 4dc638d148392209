"""The child process of `sqlite_columns`: reads a request from standard input and writes one Arrow record batch for each query."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa

_POINTS = """
    SELECT w.key, k.i, m.step, ifnull(m.value, 0.0), ifnull(m.timestamp, 0), m.is_nan OR m.value IS NULL
    FROM json_each(?) w CROSS JOIN metrics m INDEXED BY index_metrics_run_uuid ON m.run_uuid = w.value
    CROSS JOIN wanted_metric k ON k.name = m.key
"""
_SCHEMA = pa.schema(
    [
        (name, pa.float64() if name == "value" else pa.int64())
        for name in ("run", "metric", "step", "value", "time", "nan")
    ]
)


def main() -> None:
    """Read one request from standard input and write its results to standard output."""
    request = json.load(sys.stdin)
    with (
        adbc_driver_sqlite.connect(request["uri"]) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
        pa.ipc.new_stream(sys.stdout.buffer, _SCHEMA) as writer,
    ):
        for batch in _batches(connection, request):
            writer.write_batch(batch)


def _batches(connection: Any, request: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    _update(connection, f"PRAGMA busy_timeout = {1000 * request['timeout_s']:.0f}")
    _update(connection, "PRAGMA temp_store = MEMORY")
    _update(connection, "CREATE TEMP TABLE wanted_metric (name TEXT PRIMARY KEY, i INTEGER NOT NULL) WITHOUT ROWID")
    names = request["metrics"]
    _update(connection, "INSERT INTO wanted_metric VALUES (?, ?)", names=names, numbers=list(range(len(names))))
    for ids in request["parts"]:
        with adbc_driver_manager.AdbcStatement(connection) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": "1000000"})
            statement.set_sql_query(_POINTS)
            statement.bind(pa.record_batch({"ids": [json.dumps(ids)]}))
            stream, _ = statement.execute_query()
            # The query ends here and releases the file lock before the points are sent.
            table = pa.RecordBatchReader.from_stream(stream).read_all()
        # The cast fails if a column holds values of an unexpected type.
        table = table.rename_columns(_SCHEMA.names).cast(_SCHEMA).combine_chunks()
        yield pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=_SCHEMA)


def _update(connection: Any, sql: str, **columns: list[Any]) -> None:
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_sql_query(sql)
        if columns:
            statement.bind(pa.record_batch(columns))
        statement.execute_update()


if __name__ == "__main__":
    main()
