"""Stores the rows of the training thread as raw values, which the writer thread converts to metrics, column by column.

The training thread only appends a row's numbers to one list and its tensors to another. The layout of a row says which columns
these lists contain; a row with a new layout starts a new stretch of rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from advisor import contract
from advisor_logging.table import MetricRow, MetricTable
from advisor_pytorch.steps.device import HostTransfer, ScalarValue
from advisor_pytorch.steps.gradients import clipped_norm_name, clipping_limit_name, shard_metric_name
from advisor_pytorch.steps.readings import STEP_TIME_METRICS, CudaEventPair

if TYPE_CHECKING:
    from advisor_pytorch.steps.norms import StepNorms


class ColumnRole(Enum):
    """Meaning of the raw values in a column."""

    VALUE = "a metric, logged unchanged"
    LOSS = "loss of a micro-batch; the mean is logged"
    NORM = "gradient norm of one or more optimizers; the root of the sum of squares is logged"
    CLIPPED_NORM = "norm before a clipping; the gradient was clipped if the norm exceeds the LIMIT with the same name"
    LIMIT = "threshold of a norm"
    EXAMPLES = "number of examples in the step"
    SKIPPED = "number of steps that a gradient scaler skipped just before this step"
    OVERFLOWED = "nonzero if a fused optimizer skipped this step"


class RowColumn(NamedTuple):
    """A column in a stretch of rows: one number or tensor per row."""

    role: ColumnRole
    name: str = ""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of the rows in a stretch, in order."""

    numbers: tuple[RowColumn, ...]
    """Columns of numbers after the first two columns, which are the step and the wall-clock time (ms)."""
    tensors: tuple[RowColumn, ...]
    timed: bool = False
    """Whether two CUDA events per row measure its compute time."""
    is_partial: bool = False
    """Whether the norms cover only this rank's shards of the gradients; see `merging`."""


@dataclass(slots=True)
class RowStretch:
    """The training thread appends rows to a stretch, and then passes the stretch to the writer thread."""

    layout: RowLayout
    numbers: list[float] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers) // (2 + len(self.layout.numbers))


class SkippedStepCounter:
    """Steps since the last row that fused optimizers skipped, passed on from chunk to chunk."""

    count = 0.0


class PendingChunk:
    """Stretches of rows whose tensors are on the way to the host, where the writer thread reads them."""

    def __init__(self, stretches: Sequence[RowStretch], *, is_windowed: bool, skips: SkippedStepCounter | None = None) -> None:
        self.is_windowed = is_windowed
        self._stretches, self._skips = stretches, skips or SkippedStepCounter()
        self._transfers = [HostTransfer(stretch.tensors) for stretch in stretches]

    def __len__(self) -> int:
        return sum(map(len, self._stretches))

    def is_ready(self) -> bool:
        return all(transfer.is_ready() for transfer in self._transfers)

    def tables(self) -> list[MetricTable]:
        """Return the rows of the chunk as tables of metrics. The method may be called only once."""
        stretches_and_transfers = zip(self._stretches, self._transfers, strict=True)
        tables = [to_metrics_table(stretch, transfer.numbers(), self._skips) for stretch, transfer in stretches_and_transfers]
        return [table for table in tables if len(table)]

    def rows(self) -> list[MetricRow]:
        return [row for table in self.tables() for row in table.rows()]


def evaluation_chunk(step: int, time_ms: float, values: Mapping[str, ScalarValue]) -> PendingChunk:
    tensors = {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}
    numbers = {name: v for name, v in values.items() if not isinstance(v, torch.Tensor)}
    layout = RowLayout(
        tuple(RowColumn(ColumnRole.VALUE, n) for n in numbers), tuple(RowColumn(ColumnRole.VALUE, n) for n in tensors)
    )
    return PendingChunk([RowStretch(layout, [step, time_ms, *numbers.values()], list(tensors.values()))], is_windowed=False)


ColumnValues = Sequence[float]
"""ColumnValues of one column in a stretch of rows, shape (rows,)."""


def to_metrics_table(stretch: RowStretch, on_device: ColumnValues, skips: SkippedStepCounter) -> MetricTable:
    """on_device: values of the stretch's tensors, row by row, shape (rows * tensors,)."""
    layout = stretch.layout
    width, depth = 2 + len(layout.numbers), len(layout.tensors)
    by_role: dict[ColumnRole, list[tuple[str, ColumnValues]]] = {role: [] for role in ColumnRole}
    for i, (role, name) in enumerate(layout.numbers):
        by_role[role].append((name, stretch.numbers[2 + i :: width]))
    for i, (role, name) in enumerate(layout.tensors):
        by_role[role].append((name, on_device[i::depth]))
    columns: dict[str, ColumnValues] = dict(by_role[ColumnRole.VALUE])
    if losses := [values for _, values in by_role[ColumnRole.LOSS]]:
        columns[contract.TRAIN_LOSS] = losses[0] if len(losses) == 1 else [sum(r) / len(r) for r in zip(*losses, strict=True)]
    columns |= _norm_columns(by_role[ColumnRole.NORM], layout.is_partial)
    if layout.is_partial:
        columns |= _clipping_part_columns(layout, by_role)
    else:
        columns |= _clipping_columns(by_role[ColumnRole.CLIPPED_NORM], by_role[ColumnRole.LIMIT])
    if by_role[ColumnRole.EXAMPLES] and contract.STEP_TIME in columns:
        examples_and_seconds = zip(by_role[ColumnRole.EXAMPLES][0][1], columns[contract.STEP_TIME], strict=True)
        columns[contract.EXAMPLES_PER_SECOND] = [examples / seconds for examples, seconds in examples_and_seconds]
    if layout.timed:
        columns[contract.COMPUTE_TIME] = [_elapsed_seconds(*pair) for pair in stretch.events]
    steps = [int(step) for step in stretch.numbers[::width]]
    table = MetricTable(steps, [int(time_ms) for time_ms in stretch.numbers[1::width]], columns)
    if by_role[ColumnRole.SKIPPED]:
        columns[contract.SKIPPED_STEPS] = by_role[ColumnRole.SKIPPED][0][1]
        if overflowed := by_role[ColumnRole.OVERFLOWED]:
            return _drop_skipped_steps(table, overflowed[0][1], skips)
    return table


def _norm_columns(parts: Sequence[tuple[str, ColumnValues]], is_partial: bool) -> dict[str, ColumnValues]:
    if not parts:
        return {}
    total = parts[0][1] if len(parts) == 1 else [math.hypot(*row) for row in zip(*(values for _, values in parts), strict=True)]
    norms = {contract.GRAD_NORM: total, **{name: values for name, values in parts if name}}
    return {shard_metric_name(name): values for name, values in norms.items()} if is_partial else norms


def _clipping_columns(
    norms: Sequence[tuple[str, ColumnValues]], limits: Sequence[tuple[str, ColumnValues]]
) -> dict[str, ColumnValues]:
    if not norms:
        return {}
    limits_of = dict(limits)
    is_unclipped = [[n <= limit for n, limit in zip(norm, limits_of[i], strict=True)] for i, norm in norms]  # false for NaN
    return {contract.CLIPPED: [0.0 if all(row) else 1.0 for row in zip(*is_unclipped, strict=True)]}


def _clipping_part_columns(
    layout: RowLayout, by_role: Mapping[ColumnRole, Sequence[tuple[str, ColumnValues]]]
) -> dict[str, ColumnValues]:
    norms = {clipped_norm_name(i): values for i, values in by_role[ColumnRole.CLIPPED_NORM]}
    names_of_tensor_limits = {name for role, name in layout.tensors if role is ColumnRole.LIMIT}
    limits = {clipping_limit_name(i, is_partial=i in names_of_tensor_limits): values for i, values in by_role[ColumnRole.LIMIT]}
    return norms | limits


def _drop_skipped_steps(table: MetricTable, overflowed: ColumnValues, skips: SkippedStepCounter) -> MetricTable:
    counts = list(table.columns[contract.SKIPPED_STEPS])
    kept_rows = []
    for i, overflow in enumerate(overflowed):
        if overflow:
            skips.count += 1 + counts[i]
        else:
            counts[i] += skips.count
            skips.count = 0.0
            kept_rows.append(i)
    return MetricTable(table.steps, table.times_ms, {**table.columns, contract.SKIPPED_STEPS: counts}).select_rows(kept_rows)


def _elapsed_seconds(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    try:
        return float(begin.elapsed_time(end)) / 1e3
    except RuntimeError:  # the event was recorded on a stream whose work is not finished
        return math.nan


class RowBuffer:
    """Collects the rows of the training thread in stretches, which are consecutive rows with the same layout."""

    def __init__(self, *, is_partial: bool) -> None:
        """is_partial: whether the norms cover only this rank's shards of the gradients; see `merging`."""
        self._is_partial = is_partial
        self._layouts: dict[object, RowLayout] = {}
        self._key: object = None
        self._stretch = RowStretch(RowLayout((), ()))
        self._stretches: list[RowStretch] = []

    def append(
        self,
        key: tuple[Any, ...],
        norms: StepNorms,
        row: list[float],
        tensors: list[torch.Tensor],
        events: CudaEventPair | None,
    ) -> None:
        if key != self._key or (events is not None) != self._stretch.layout.timed:
            self._begin_row_stretch(key, norms, timed=events is not None)
        stretch = self._stretch
        stretch.numbers += row
        stretch.tensors += tensors
        if events is not None:
            stretch.events.append(events)

    def take(self) -> list[RowStretch]:
        if self._stretch.numbers:
            self._stretches.append(self._stretch)
            self._stretch = RowStretch(self._stretch.layout)
        stretches, self._stretches = self._stretches, []
        return stretches

    def _begin_row_stretch(self, key: tuple[Any, ...], norms: StepNorms, *, timed: bool) -> None:
        if self._stretch.numbers:
            self._stretches.append(self._stretch)
        if (key, timed) not in self._layouts:
            columns = norms.columns(key[-1])
            self._layouts[key, timed] = row_layout(key, columns, timed=timed, is_partial=self._is_partial)
        self._key, self._stretch = key, RowStretch(self._layouts[key, timed])


def row_layout(key: Any, norms: tuple[Sequence[RowColumn], Sequence[RowColumn]], *, timed: bool, is_partial: bool) -> RowLayout:
    """Return the columns in the order in which `StepCapture` fills them.

    key: number of times; names of the learning rates that are numbers, and that are tensors; numbers of losses that are tensors,
    and that are numbers; whether examples are counted; None, or (scale known, overflow possible); key of the norms.
    """
    times, number_rates, tensor_rates, losses, plain_losses, has_examples, scaled, _ = key
    numbers = [RowColumn(ColumnRole.VALUE, name) for name in (*STEP_TIME_METRICS[:times], *number_rates)]
    numbers += [RowColumn(ColumnRole.LOSS)] * plain_losses
    tensors = [RowColumn(ColumnRole.LOSS)] * losses + [RowColumn(ColumnRole.VALUE, name) for name in tensor_rates]
    if has_examples:
        numbers.append(RowColumn(ColumnRole.EXAMPLES))
    if scaled:
        has_scale, may_have_overflowed = scaled
        numbers.append(RowColumn(ColumnRole.SKIPPED))
        tensors += [RowColumn(ColumnRole.VALUE, contract.LOSS_SCALE)] * has_scale
        tensors += [RowColumn(ColumnRole.OVERFLOWED)] * may_have_overflowed
    return RowLayout((*numbers, *norms[0]), (*tensors, *norms[1]), timed, is_partial)
