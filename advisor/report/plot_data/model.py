"""The data of the report's figures: computed from the study once, drawn by `figures`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from advisor.model.frozen import FrozenModel
from advisor.model.space import Value
from advisor.model.study import Signal, Status


class TrialRow(FrozenModel):
    """One trial: a row of the table and a point of the plots."""

    id: str
    name: str
    status: Status
    feasible: bool
    params: dict[str, Value]
    best: float | None = None
    """Best value of the objective, in the objective's own direction; None without a finite one."""
    best_step: int | None = None
    last_step: int | None = None
    evaluations: int = 0
    """Number of logged values of the objective."""
    round: int | None = None
    """Number of the earlier round that ran it; None for a trial of the study itself."""

    @property
    def failed(self) -> bool:
        """Whether it ended without a usable result."""
        return not self.feasible and self.status not in ("running", "no_data")


class TrialCurve(FrozenModel):
    """A metric of a trial, reduced to the first, minimum, maximum and last point of each pixel column."""

    trial: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    """None if the logged value was not finite."""


class CurveSet(FrozenModel):
    """One metric of the trials to show."""

    metric: str
    signal: Signal | Literal["objective"] | None = None
    scale: Literal["linear", "log"] = "linear"
    """Scale of the step axis."""
    curves: tuple[TrialCurve, ...]


class CompactCurves(FrozenModel):
    """One metric of every trial, to be drawn on one pair of axes by the page's script."""

    metric: str
    columns: int
    """Equal parts of the step axis; a curve has its minimum and maximum in each."""
    first_step: int
    last_step: int
    log_steps: bool
    low: float
    high: float
    log: bool
    beyond: bool
    """Whether some values lie outside the vertical axis."""
    curves: tuple[str | None, ...]
    """One entry a trial, in the order of the study, as `compact_curves.py` encodes it: empty without a value, None if omitted."""


class NormHistogram(FrozenModel):
    """The gradient norms of the best trials."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool
    p90: float
    trials: int
    left_out: int = 0
    """Number of values that were zero or not finite."""
    clip: float | None = None
    """Norm at which all of these trials clip their gradients; None if unknown or different."""
    clipped: float | None = None
    """Share of their updates that was clipped."""


class BestOf(FrozenModel):
    """Distribution of the best of n trials drawn from this study's."""

    sizes: tuple[int, ...]
    quantiles: tuple[tuple[float | None, ...], ...]
    """For each size the values that the best reaches in 5, 25, 50, 75 and 95 % of draws; None if it failed there."""


class Slice(FrozenModel):
    """The trials in one part of a hyperparameter's range, or with one choice."""

    label: str
    low: float | None = None
    high: float | None = None
    """Smallest and largest value in the slice; None for a choice."""
    trials: int
    """Number of trials that ended."""
    best: str | None
    """Id of the best trial; None if all failed."""
    value: float | None
    """Objective of the best trial."""
    quantiles: tuple[float | None, float | None, float | None]
    """Values that the best of n trials reaches in 5, 50 and 95 % of draws, n the size of the smallest slice; None for a failure."""


class Isolation(FrozenModel):
    """The best trial for each value of one hyperparameter, the others tuned."""

    parameter: str
    drawn: int
    """Number of trials drawn from each slice, so that all have equal chances."""
    slices: tuple[Slice, ...]
    p: float
    """p-value: probability that chance alone leaves some slice's best result this far behind, adjusted for all hyperparameters."""


class Speed(FrozenModel):
    """The throughput at one batch size, with its 90 % interval (None if unknown)."""

    batch_size: float
    examples_per_s: float
    low: float | None
    high: float | None
    trials: tuple[str, ...]


class Needed(FrozenModel):
    """Training that one batch size needed to reach the target."""

    batch_size: float
    typical: float
    """In the unit of its `ToTarget`."""
    seconds: float | None
    trials: tuple[str, ...]


class ToTarget(FrozenModel):
    """Training to a target value at each batch size."""

    unit: Literal["epochs", "examples"]
    target: float | None
    """Value of the objective; None if the objective itself is a training time."""
    repeats: bool
    """Whether repeats of one setting are compared; otherwise the best of several settings."""
    sizes: tuple[Needed, ...]


class Importance(FrozenModel):
    """Share of the variation between trials that something explains, with a 90 % interval."""

    parameters: tuple[str, ...]
    """One hyperparameter with all its interactions, or two and their interaction alone."""
    share: float
    low: float
    high: float
    p: float | None = None
    """For a pair: probability that additive effects look this much like an interaction, adjusted for all pairs."""


class Importances(FrozenModel):
    """Importance of every hyperparameter of the study."""

    settings: int
    p: float
    """Probability that results unrelated to the hyperparameters look this much related."""
    each: tuple[Importance, ...]
    """Largest share first."""
    pairs: tuple[Importance, ...]
    """Likeliest interaction first."""


class CloseUp(FrozenModel):
    """Every logged point of a curve around a step that a finding marks."""

    rule: str
    trial: str
    metric: str
    step: int
    label: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class JustAbove(FrozenModel):
    """The trials with the next higher learning rates than the best trial."""

    parameter: str
    metric: str
    best: float
    """Learning rate of the best trial."""
    trials: tuple[str, ...]
    rates: tuple[float, ...]
    failed: int


class Figures(FrozenModel):
    """The data of all figures."""

    trials: tuple[TrialRow, ...]
    """In the order of the study."""
    curves: tuple[CurveSet, ...] = ()
    best_trials: tuple[str, ...] = ()
    """Ids of the trials whose curves are shown, best first."""
    grad_norm: NormHistogram | None = None
    isolations: tuple[Isolation, ...] = ()
    best_of: BestOf | None = None
    speeds: tuple[Speed, ...] = ()
    to_target: ToTarget | None = None
    importances: Importances | None = None
    close_ups: tuple[CloseUp, ...] = ()
    just_above: JustAbove | None = None
    compact_curves: tuple[CompactCurves, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, TrialRow]:
        """The trials by id."""
        return {t.id: t for t in self.trials}

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each trial by id."""
        return {t.id: i for i, t in enumerate(self.trials)}
