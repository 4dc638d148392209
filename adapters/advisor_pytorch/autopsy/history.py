"""Keeps the rows of metrics around the first non-finite value of a training run. The writer thread calls all functions of this
module."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from advisor import contract
from advisor_logging.table import MetricTable

MAX_ROWS, FIRST_ROWS, ROWS_AFTER = 60, 5, 3
"""Numbers of rows to keep: rows before the first non-finite value, rows at the start of the training, and rows after the first
non-finite value."""
HISTORY_METRICS = (contract.TRAIN_LOSS, contract.GRAD_NORM, contract.LEARNING_RATE, contract.LOSS_SCALE, contract.SKIPPED_STEPS)


class History:
    """Keeps rows of the form (step, value of each column in `HISTORY_METRICS`)."""

    def __init__(self) -> None:
        self.first_bad_step: int | None = None
        """First step whose loss or gradient norm is not finite."""
        self._first: list[list[Any]] = []
        self._last: deque[list[Any]] = deque(maxlen=MAX_ROWS)
        self._after: list[list[Any]] = []

    def add(self, table: MetricTable) -> None:
        """Rows of evaluations are ignored."""
        columns = [table.columns.get(name) for name in HISTORY_METRICS]
        if len(self._after) >= ROWS_AFTER or (columns[0] is None and columns[1] is None):
            return
        if self.first_bad_step is None and _all_finite(columns[0]) and _all_finite(columns[1]):
            skipped = 0 if len(self._first) < FIRST_ROWS else max(len(table) - MAX_ROWS, 0)
        else:
            skipped = 0
        for i in range(skipped, len(table)):
            self._keep_row([table.steps[i], *(None if column is None else column[i] for column in columns)])

    def _keep_row(self, row: list[Any]) -> None:
        if self.first_bad_step is None and not _all_finite(value for value in row[1:3] if value is not None):
            self.first_bad_step = row[0]
        if self.first_bad_step is None:
            self._last.append(row)
            if len(self._first) < FIRST_ROWS:
                self._first.append(row)
        elif len(self._after) < ROWS_AFTER:
            self._after.append(row)

    def facts(self) -> dict[str, Sequence[Any]]:
        """Return the rows at the start of the training, just before the first non-finite value, and just after it."""
        return {"columns": ("step", *HISTORY_METRICS), "first": self._first, "before": list(self._last), "after": self._after}


def _all_finite(values: Any) -> bool:
    return values is None or all(map(math.isfinite, values))
