"""Evidence of a finding: data to plot, never a drawn figure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField


class Line(FrozenModel):
    """A marked value on an axis."""

    value: float
    label: str


class Mark(FrozenModel):
    """A marked point of a trial's curve."""

    trial: str
    step: int
    label: str


class AxisEvidence(FrozenModel):
    """The objective against one hyperparameter, for all trials."""

    kind: Literal["axis"] = "axis"
    parameter: str
    caption: MessageField
    """One sentence with the result."""
    trials: tuple[str, ...] = ()
    """Ids of the trials to highlight."""
    lines: tuple[Line, ...] = ()
    """Values of the hyperparameter to mark, such as the border of the infeasible region."""
    next_low: float | None = None
    """The range that the finding recommends (with `next_low`)."""
    next_high: float | None = None


class CurveEvidence(FrozenModel):
    """Curves of trials over the training steps."""

    kind: Literal["curves"] = "curves"
    metrics: tuple[str, ...]
    """Metric names as logged."""
    caption: MessageField
    trials: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    """Values of the metric to mark, such as a threshold."""


class HistogramEvidence(FrozenModel):
    """The distribution of a quantity."""

    kind: Literal["histogram"] = "histogram"
    quantity: str
    """The quantity with its unit."""
    caption: MessageField
    edges: tuple[float, ...]
    """Shape (bins + 1,)."""
    counts: tuple[int, ...]
    lines: tuple[Line, ...] = ()
    log: bool = False


class FigureEvidence(FrozenModel):
    """The numbers behind a finding: sample size, interval, threshold, test."""

    kind: Literal["figures"] = "figures"
    rows: tuple[tuple[str, MessageField], ...]
    """(label, value with its unit)."""


Evidence = Annotated[AxisEvidence | CurveEvidence | HistogramEvidence | FigureEvidence, Field(discriminator="kind")]
