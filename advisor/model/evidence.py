"""Defines the evidence of a finding: data for plots and tables. The report formats draw the plots and tables from these data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from advisor.model.frozen import FrozenModel
from advisor.model.message import Item, MessageField
from advisor.model.study import Trial


class Line(FrozenModel):
    """A value to mark on the axis of a plot."""

    value: float
    label: str


class Mark(FrozenModel):
    """A point to mark on a trial's curve."""

    trial: str
    step: int
    label: str


class AxisEvidence(FrozenModel):
    """Data of a plot of the objective against one hyperparameter, for all trials."""

    kind: Literal["axis"] = "axis"
    parameter: str
    caption: MessageField
    """Caption of the plot: one sentence that states what it shows."""
    trials: tuple[str, ...] = ()
    """Ids of the trials to highlight in the plot."""
    lines: tuple[Line, ...] = ()
    """Values of the hyperparameter to mark in the plot, such as the end of the infeasible region."""
    next_low: float | None = None
    """Recommended range of the hyperparameter, from `next_low` to `next_high`."""
    next_high: float | None = None


class CurveEvidence(FrozenModel):
    """Data of a plot of trials' curves over the training steps."""

    kind: Literal["curves"] = "curves"
    metrics: tuple[str, ...]
    """Names of the metrics to plot, as the trials logged them."""
    caption: MessageField
    trials: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    """Values of the metric to mark in the plot, such as a threshold."""
    shares: bool = False
    """Whether the metrics are shares, so that the axis goes from 0 to 1 and small changes do not look large."""


class HistogramEvidence(FrozenModel):
    """Data of a histogram of one quantity."""

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
    """Table of the numbers on which a finding is based, such as sample size, confidence interval, threshold and test."""

    kind: Literal["figures"] = "figures"
    rows: tuple[tuple[str, MessageField], ...]
    """Rows of the table: (label, value with unit)."""


AnyEvidence: TypeAlias = AxisEvidence | CurveEvidence | HistogramEvidence | FigureEvidence
Evidence = Annotated[AnyEvidence, Field(discriminator="kind")]


def table(*rows: tuple[str, Item | float]) -> FigureEvidence:
    """Return the table of a finding's numbers from its rows: (label, value with its unit)."""
    return FigureEvidence(rows=rows)


def curve_plot(
    metrics: str | Iterable[str],
    caption: Item,
    trials: Iterable[Trial],
    *,
    marks: Iterable[Mark] = (),
    lines: Mapping[str, float] | None = None,
    shares: bool = False,
) -> CurveEvidence:
    """Return the plot of one or several metrics of these trials; see `CurveEvidence`. lines: values to mark, by label."""
    return CurveEvidence(
        metrics=(metrics,) if isinstance(metrics, str) else tuple(metrics),
        caption=caption,
        trials=tuple(t.id for t in trials),
        marks=tuple(marks),
        lines=tuple(Line(value=value, label=label) for label, value in (lines or {}).items()),
        shares=shares,
    )
