"""Determines the layout of the rows that `StepCapture` appends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advisor import contract
from advisor_pytorch.steps.clock import TIME_METRICS
from advisor_pytorch.steps.rows import Column, ColumnRole, Layout


def row_layout(key: Any, norms: tuple[Sequence[Column], Sequence[Column]], *, timed: bool, in_parts: bool) -> Layout:
    """Return the columns in the order in which `StepCapture` fills them. norms: (number columns, tensor columns) of the norms.

    key: number of times; names of the rates that are numbers; names of the rates that are tensors; number of losses that are
    tensors; number of losses that are numbers; whether examples are counted; for scaled gradients, (whether the scale is known,
    whether an overflow may have happened), else None; key of the norms.
    """
    times, number_rates, tensor_rates, losses, plain_losses, has_examples, scaled, _ = key
    numbers = [Column(ColumnRole.VALUE, name) for name in (*TIME_METRICS[:times], *number_rates)]
    numbers += [Column(ColumnRole.LOSS)] * plain_losses
    tensors = [Column(ColumnRole.LOSS)] * losses + [Column(ColumnRole.VALUE, name) for name in tensor_rates]
    if has_examples:
        numbers.append(Column(ColumnRole.EXAMPLES))
    if scaled:
        has_scale, may_have_overflowed = scaled
        numbers.append(Column(ColumnRole.SKIPPED))
        tensors += [Column(ColumnRole.VALUE, contract.LOSS_SCALE)] * has_scale
        tensors += [Column(ColumnRole.OVERFLOWED)] * may_have_overflowed
    return Layout((*numbers, *norms[0]), (*tensors, *norms[1]), timed, in_parts)
