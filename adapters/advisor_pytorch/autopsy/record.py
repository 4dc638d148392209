"""Writes the files of an autopsy to the spool folder; the shipper process stores them as artifacts."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from advisor import contract
from advisor_logging.recorder import Recorder
from advisor_logging.table import MetricTable
from advisor_pytorch.autopsy.watch import SeenBatch

MAX_ROWS, FIRST_ROWS, ROWS_AFTER = 60, 5, 3
"""Numbers of rows to keep: before the first non-finite value, at the start of the training, and afterwards."""
HISTORY_METRICS = (contract.TRAIN_LOSS, contract.GRAD_NORM, contract.LEARNING_RATE, contract.LOSS_SCALE, contract.SKIPPED_STEPS)


class MetricHistory:
    """Keeps rows of the form (step, value of each column in `HISTORY_METRICS`)."""

    def __init__(self) -> None:
        self.first_bad_step: int | None = None
        self._first: list[list[Any]] = []
        self._last: deque[list[Any]] = deque(maxlen=MAX_ROWS)
        self._after: list[list[Any]] = []

    def add_rows(self, table: MetricTable) -> None:
        columns = [table.columns.get(name) for name in HISTORY_METRICS]
        if len(self._after) >= ROWS_AFTER or (columns[0] is None and columns[1] is None):
            return
        is_finite = self.first_bad_step is None and _all_finite(columns[0]) and _all_finite(columns[1])
        first_row = max(len(table) - MAX_ROWS, 0) if is_finite and len(self._first) >= FIRST_ROWS else 0
        for i in range(first_row, len(table)):
            row: list[Any] = [table.steps[i], *(None if column is None else column[i] for column in columns)]
            if self.first_bad_step is None and not _all_finite(value for value in row[1:3] if value is not None):
                self.first_bad_step = row[0]
            if self.first_bad_step is None:
                self._last.append(row)
                if len(self._first) < FIRST_ROWS:
                    self._first.append(row)
            elif len(self._after) < ROWS_AFTER:
                self._after.append(row)

    def facts(self) -> dict[str, Sequence[Any]]:
        return {"columns": ("step", *HISTORY_METRICS), "first": self._first, "before": list(self._last), "after": self._after}


def _all_finite(values: Any) -> bool:
    return values is None or all(map(math.isfinite, values))


MAX_AUTOPSY_BYTES = 60_000
"""Maximum bytes of the autopsy's JSON file. If the JSON text is longer than this, the least informative entries are omitted."""
_LEAST_INFORMATIVE_KEYS = ("spikes", "following", "buffers", "batch", "graph", "optimizers", "parameters", "gradients")
AUTOPSY_SCHEMA_VERSION = 1


class AutopsyFile:
    """Writes the facts of the autopsy together with the training's last rows, which only the writer thread knows."""

    def __init__(self, recorder: Recorder, flush: Callable[[], None], run_facts: Mapping[str, Any]) -> None:
        """flush: passes the rows of the training thread to the writer thread. run_facts: facts about the training run."""
        self._recorder, self._flush, self._run_facts = recorder, flush, run_facts
        self._history = MetricHistory()

    def add_rows(self, table: MetricTable) -> int | None:
        """Return the first step whose loss or gradient norm is not finite; None if all are finite."""
        self._history.add_rows(table)
        return self._history.first_bad_step

    def write(self, facts: Mapping[str, Any], batches: Sequence[SeenBatch]) -> None:
        """Write the batches immediately, if there are any; the writer thread writes the facts later."""
        self._flush()
        if batches:
            path = self._recorder.folder / contract.AUTOPSY_BATCH_PATH.rpartition("/")[2]
            temporary_path = path.with_suffix(".new")
            with contextlib.suppress(OSError):  # a full disk
                torch.save([seen._asdict() for seen in batches], temporary_path)
                os.replace(temporary_path, path)
        self._recorder.defer(lambda: self._write_facts(facts))

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        record = {"schema": AUTOPSY_SCHEMA_VERSION, **self._run_facts, **facts, "history": self._history.facts()}
        path = self._recorder.folder / contract.AUTOPSY_PATH.rpartition("/")[2]
        with contextlib.suppress(OSError):
            temporary_path = path.with_suffix(".new")
            temporary_path.write_text(autopsy_json(record), encoding="utf-8")
            os.replace(temporary_path, path)


def autopsy_json(record: Mapping[str, Any]) -> str:
    """Return the autopsy record as JSON of at most `MAX_AUTOPSY_BYTES` bytes, with non-finite numbers as strings."""
    plain_record = {key: _to_plain_value(value) for key, value in record.items()}
    for key in _LEAST_INFORMATIVE_KEYS:
        if len(json.dumps(plain_record)) <= MAX_AUTOPSY_BYTES:
            break
        if plain_record.pop(key, None):
            plain_record["left_out"] = [*plain_record.get("left_out", ()), key]
    return json.dumps(plain_record)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _to_plain_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain_value(part) for part in value]
    return value
