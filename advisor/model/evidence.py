"""Defines the evidence of a finding, as data for plots and tables. Report formats draw plots and tables from the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField, MessagePart, Percent, value_with_limit
from advisor.model.study import Trial


class Line(FrozenModel):
    """A value that a plot marks with a line across its axis."""

    value: float
    label: str


class Mark(FrozenModel):
    """A point that a plot marks on the curve of a trial."""

    trial: str
    step: int
    label: str
    lasting: bool = False
    """True if the curve stays at a new level from this step on."""


class AxisEvidence(FrozenModel):
    """Data for a plot of the objective against one hyperparameter, with one point per trial."""

    kind: Literal["axis"] = "axis"
    parameter: str
    caption: MessageField
    """One sentence on what the plot shows."""
    trials: tuple[str, ...] = ()
    """Ids of highlighted trials."""
    lines: tuple[Line, ...] = ()
    """Values that the plot marks, such as the edge of a region in which trials fail."""
    next_low: float | None = None
    """Lower end of the recommended range of the hyperparameter, or None if no range is recommended."""
    next_high: float | None = None


class CurveEvidence(FrozenModel):
    """Data for a plot of trials' curves over the training steps."""

    kind: Literal["curves"] = "curves"
    metrics: tuple[str, ...]
    caption: MessageField
    trials: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    """Values of the metric that the plot marks."""
    shares: bool = False
    """True if the axis goes from 0 to 1, so that small changes do not look large."""


class HistogramEvidence(FrozenModel):
    """Data for a histogram of one quantity."""

    kind: Literal["histogram"] = "histogram"
    quantity: str
    """Name and unit of the quantity on the histogram's axis."""
    caption: MessageField
    edges: tuple[float, ...]
    """Bin edges of the histogram, shape (bins + 1,)."""
    counts: tuple[int, ...]
    lines: tuple[Line, ...] = ()
    log: bool = False


class FigureEvidence(FrozenModel):
    """Table of the numbers behind a finding, such as sample size, confidence interval, threshold and test."""

    kind: Literal["figures"] = "figures"
    rows: tuple[tuple[str, MessageField], ...]
    """Rows of the table, each a pair (label, value with its unit)."""


AnyEvidence: TypeAlias = AxisEvidence | CurveEvidence | HistogramEvidence | FigureEvidence
Evidence = Annotated[AnyEvidence, Field(discriminator="kind")]


TableRow: TypeAlias = "tuple[str, MessagePart | float] | tuple[str, MessagePart | float, MessagePart | float]"
"""Row of a table: (label, value with its unit), or (label, value, limit of the value)."""


def table(*rows: TableRow) -> FigureEvidence:
    """Return the table of the numbers behind a finding. If a value is a `Percent`, its limit is a number from 0 to 1."""
    return FigureEvidence(rows=tuple((label, _value_with_limit(*value)) for label, *value in rows))


def _value_with_limit(value: MessagePart | float, limit: MessagePart | float | None = None) -> MessagePart | float:
    if limit is None:
        return value
    return value_with_limit(value, Percent(limit) if isinstance(value, Percent) and isinstance(limit, int | float) else limit)


def axis_plot(
    parameter: str,
    caption: MessagePart,
    trials: Iterable[Trial] = (),
    *,
    lines: Mapping[str, float] | None = None,
    span: tuple[float | None, float | None] = (None, None),
) -> AxisEvidence:
    """trials: to highlight; lines: values to mark, by label; span: the recommended range of the hyperparameter."""
    ids, marked, (low, high) = tuple(t.id for t in trials), _lines(lines or {}), span
    return AxisEvidence(parameter=parameter, caption=caption, trials=ids, lines=marked, next_low=low, next_high=high)


def _lines(lines: Mapping[str, float]) -> tuple[Line, ...]:
    return tuple(Line(value=value, label=label) for label, value in lines.items())


def curve_plot(
    metrics: str | Iterable[str],
    caption: MessagePart,
    trials: Iterable[Trial],
    *,
    marks: Iterable[Mark] = (),
    lines: Mapping[str, float] | None = None,
    shares: bool = False,
) -> CurveEvidence:
    """Return a plot of the curves of metrics in the given trials. lines: values to mark, by label."""
    return CurveEvidence(
        metrics=(metrics,) if isinstance(metrics, str) else tuple(metrics),
        caption=caption,
        trials=tuple(t.id for t in trials),
        marks=tuple(marks),
        lines=_lines(lines or {}),
        shares=shares,
    )
