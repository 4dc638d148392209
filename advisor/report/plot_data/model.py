"""The data of the report's figures: computed once from the study, drawn by `figures`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from advisor.computed.space.importance import SIGNIFICANCE_LEVEL
from advisor.model.frozen import FrozenModel
from advisor.model.space import HyperparameterValue
from advisor.model.study import Signal, TrialStatus


class TrialRow(FrozenModel):
    id: str
    name: str
    status: TrialStatus
    feasible: bool
    comparable: bool = True
    """Whether the trial has a result at full training length. A pruned trial has none."""
    params: dict[str, HyperparameterValue]
    best: float | None = None
    """The trial's best value of the objective, with the objective's original sign, or None if no value was finite."""
    place: int | None = None
    """Rank among comparable results, 0 for the best, or None. Equal best values tie only if the late evaluations are equal."""
    best_step: int | None = None
    last_step: int | None = None
    evaluations: int = 0
    round: int | None = None
    """Number of the earlier round in which the trial ran, or None for a trial of the study itself."""

    @property
    def failed(self) -> bool:
        return not self.feasible and self.status not in ("running", "no_data")


class TrialCurve(FrozenModel):
    """One metric of one trial, reduced to the first, minimum, maximum and last point of each pixel column."""

    trial: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class MetricCurveSet(FrozenModel):
    metric: str
    signal: Signal | Literal["objective"] | None = None
    scale: Literal["linear", "log"] = "linear"
    curves: tuple[TrialCurve, ...]


class EncodedCurves(FrozenModel):
    """The encoded curves of one metric for every trial. The page's script draws the selected curves on the same axes."""

    metric: str
    columns: int
    """Number of equal parts of the step axis. A curve has one minimum and one maximum in each part."""
    first_step: int
    last_step: int
    log_steps: bool
    low: float
    high: float
    log: bool
    has_values_outside: bool
    curves: tuple[str | None, ...]
    """One curve per trial in study order: "" for a trial without values, and None for an omitted curve."""


class GradientNormHistogram(FrozenModel):
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool
    p90: float
    trials: int
    omitted_count: int = 0
    clipping_threshold: float | None = None
    """Gradient norm above which the best trials clip the gradient, or None if it is unknown or differs between the trials."""
    clipped_share: float | None = None


class BestOfNTrials(FrozenModel):
    """Distribution, for several n, of the best result of n trials that are drawn at random from the study's trials."""

    sizes: tuple[int, ...]
    quantiles: tuple[tuple[float | None, ...], ...]
    """For each n, the 5, 25, 50, 75 and 95 % quantiles of the best result. A quantile is None if all n trials fail there."""
    repeats: bool = False
    """Whether some setting was run more than once. The median of its runs then counts as one result."""

    @property
    def unit(self) -> str:
        return "setting" if self.repeats else "trial"


class IsolationSlice(FrozenModel):
    label: str
    low: float | None = None
    high: float | None = None
    """Smallest (`low`) and largest (`high`) value of the hyperparameter in the slice, or None for a categorical hyperparameter."""
    trials: int
    best: str | None
    """Id of the slice's best trial, or None if all trials of the slice failed."""
    value: float | None
    quantiles: tuple[float | None, float | None, float | None]
    """5, 50 and 95 % quantiles of the best of n settings (n is equal for all slices), or None if all n failed."""


class IsolationPlot(FrozenModel):
    parameter: str
    draw_count: int
    """Number of settings drawn from each slice. It is equal for all slices, so that large slices have no advantage."""
    repeats: bool = False
    slices: tuple[IsolationSlice, ...]
    p: float
    """Probability that some slice is by chance as bad as the worst, adjusted for the number of hyperparameters."""
    confounders: tuple[str, ...] = ()
    """Other hyperparameters whose values in the best slice do not overlap with those in the worst slice."""


class BatchSizeThroughput(FrozenModel):
    """The throughput at one batch size with a 90 % interval, whose ends are None if the interval is unknown."""

    batch_size: float
    examples_per_s: float
    low: float | None
    high: float | None


class BatchSizeTraining(FrozenModel):
    batch_size: float
    amount: float
    """Median over repeats or else the smallest amount over settings, in the unit `TrainingComparison.unit`."""
    seconds: float | None


class TrainingComparison(FrozenModel):
    unit: Literal["epochs", "examples"]
    target: float | None
    """Target value of the objective, or None if the objective itself is a training time."""
    repeats: bool
    sizes: tuple[BatchSizeTraining, ...]


class ParameterImportance(FrozenModel):
    """Share of the objective's variation between trials that a hyperparameter or a pair explains, with a 90 % interval."""

    parameters: tuple[str, ...]
    """One name for the share of a hyperparameter including its interactions, two names for the share of an interaction alone."""
    share: float
    low: float
    high: float
    p: float | None = None
    """P-value of a pair's interaction (null: additive effects), adjusted for the number of pairs; None for a single name."""


class StudyImportances(FrozenModel):
    settings: int
    p: float
    """Probability of a relation at least as strong as the observed one if results do not depend on hyperparameters."""
    of_parameters: tuple[ParameterImportance, ...]
    """Importance of each hyperparameter, the largest share first."""
    of_pairs: tuple[ParameterImportance, ...]
    """Importance of pairs of hyperparameters, the most significant interaction first."""


class CurveCloseUp(FrozenModel):
    trial: str
    metric: str
    step: int
    label: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class HigherRateTrials(FrozenModel):
    parameter: str
    metric: str
    best: float
    trials: tuple[str, ...]
    rates: tuple[float, ...]
    failed_count: int


class FigureData(FrozenModel):
    trials: tuple[TrialRow, ...]
    curves: tuple[MetricCurveSet, ...] = ()
    best_trials: tuple[str, ...] = ()
    gradient_norms: GradientNormHistogram | None = None
    isolations: tuple[IsolationPlot, ...] = ()
    best_of_n: BestOfNTrials | None = None
    throughputs: tuple[BatchSizeThroughput, ...] = ()
    training_to_target: TrainingComparison | None = None
    importances: StudyImportances | None = None
    close_ups: tuple[CurveCloseUp, ...] = ()
    higher_rate_trials: HigherRateTrials | None = None
    compact_curves: tuple[EncodedCurves, ...] = ()

    @property
    def effects(self) -> dict[str, float]:
        """Share of the objective's variation between settings that each hyperparameter explains; empty if no effect was found."""
        if self.importances is None or self.importances.p > SIGNIFICANCE_LEVEL:
            return {}
        return {i.parameters[0]: i.share for i in self.importances.of_parameters}

    @cached_property
    def by_id(self) -> dict[str, TrialRow]:
        return {t.id: t for t in self.trials}

    @cached_property
    def index(self) -> dict[str, int]:
        return {t.id: i for i, t in enumerate(self.trials)}
