"""Collects the rows that `StepCapture` appends; consecutive rows with the same columns form a stretch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.clock import STEP_TIME_METRICS, CudaEventPair
from advisor_pytorch.steps.norms import StepNorms
from advisor_pytorch.steps.rows import ColumnRole, RowColumn, RowLayout, RowStretch


class RowBuffer:
    """Collects the rows of the training thread in stretches, which are consecutive rows with the same layout."""

    def __init__(self, *, in_parts: bool) -> None:
        """in_parts: whether the norms cover only this rank's shards of the gradients; see `merging`."""
        self._in_parts = in_parts
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
        """Add a row: its numbers, its tensors, and the events that measure its compute time. key: layout of the row, see
        `row_layout`."""
        if key != self._key or (events is not None) != self._stretch.layout.timed:
            self._begin_row_stretch(key, norms, timed=events is not None)
        stretch = self._stretch
        stretch.numbers += row
        stretch.tensors += tensors
        if events is not None:
            stretch.events.append(events)

    def take(self) -> list[RowStretch]:
        """Return the collected stretches of rows, and empty the buffer."""
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
            self._layouts[key, timed] = row_layout(key, columns, timed=timed, in_parts=self._in_parts)
        self._key, self._stretch = key, RowStretch(self._layouts[key, timed])


def row_layout(key: Any, norms: tuple[Sequence[RowColumn], Sequence[RowColumn]], *, timed: bool, in_parts: bool) -> RowLayout:
    """Return the columns in the order in which `StepCapture` fills them. norms: (columns of numbers, columns of tensors) for
    the gradient norms.

    key: number of times; names of the learning rates that are numbers; names of the learning rates that are tensors; number of
    losses that are tensors; number of losses that are numbers; whether examples are counted; for scaled gradients, (whether the
    scale is known, whether an overflow may have happened), else None; key of the norms.
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
    return RowLayout((*numbers, *norms[0]), (*tensors, *norms[1]), timed, in_parts)
