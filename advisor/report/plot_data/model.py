"""The data of the report's figures: computed once from the study, drawn by `figures`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from advisor.computed.space.importance import FALSE_ALARMS
from advisor.model.frozen import FrozenModel
from advisor.model.space import Value
from advisor.model.study import Signal, Status


class TrialRow(FrozenModel):
    """One trial, as shown in a row of the table and a point of the plots."""

    id: str
    name: str
    status: Status
    feasible: bool
    comparable: bool = True
    """Whether the trial has a result at full length; False for a pruned trial."""
    params: dict[str, Value]
    best: float | None = None
    """The trial's best value of the objective, with the objective's original sign; None if no value was finite."""
    place: int | None = None
    """Place among the trials with a comparable result, from 0 for the best; None without such a result. Equal best values are
    ordered as in `Study.ranked`; trials have the same place if their late evaluations are equal as well.
    """
    best_step: int | None = None
    """Step of the best value; the last one if several steps have it."""
    last_step: int | None = None
    evaluations: int = 0
    """Number of values of the objective that the trial logged."""
    round: int | None = None
    """Number of the earlier round in which the trial ran; None for a trial of the study itself."""

    @property
    def failed(self) -> bool:
        """Whether the trial ended without a usable result."""
        return not self.feasible and self.status not in ("running", "no_data")


class TrialCurve(FrozenModel):
    """One metric of one trial, reduced to the first, minimum, maximum and last point of each pixel column."""

    trial: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    """Values of the metric; None in place of a value that was not finite."""


class CurveSet(FrozenModel):
    """The curves of one metric for the trials to show."""

    metric: str
    signal: Signal | Literal["objective"] | None = None
    scale: Literal["linear", "log"] = "linear"
    """Scale of the step axis: linear or logarithmic."""
    curves: tuple[TrialCurve, ...]


class CompactCurves(FrozenModel):
    """One metric of every trial, which the page's script draws on shared axes."""

    metric: str
    columns: int
    """Number of equal parts of the step axis. A curve has a minimum and a maximum in each part."""
    first_step: int
    last_step: int
    log_steps: bool
    low: float
    high: float
    log: bool
    beyond: bool
    """Whether some values of the metric lie outside the vertical axis."""
    curves: tuple[str | None, ...]
    """One curve per trial in study order, encoded as in `compact_curves.py`: "" if nothing was logged, None if left out."""


class NormHistogram(FrozenModel):
    """Histogram of the gradient norms of the best trials."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool
    p90: float
    trials: int
    left_out: int = 0
    """Number of gradient norms excluded because they were zero or not finite."""
    clip: float | None = None
    """Gradient norm above which these trials clip; None if unknown or different between trials."""
    clipped: float | None = None
    """Share of these trials' updates in which the gradient was clipped; None if unknown."""


class BestOf(FrozenModel):
    """Distribution of the best result of n trials, drawn at random from the study's trials, for several n."""

    sizes: tuple[int, ...]
    quantiles: tuple[tuple[float | None, ...], ...]
    """The 5, 25, 50, 75 and 95 % quantiles of the best objective, for each n; None for a quantile at which all n trials failed."""
    repeats: bool = False
    """Whether some setting was run more than once. Its repeats count as one trial, with their median."""

    @property
    def unit(self) -> str:
        """Noun for the things drawn: `setting` or `trial`."""
        return "setting" if self.repeats else "trial"


class Slice(FrozenModel):
    """The trials in one part of a hyperparameter's range, or those with one choice."""

    label: str
    low: float | None = None
    high: float | None = None
    """Smallest (`low`) and largest (`high`) value in the slice; None for a choice."""
    trials: int
    """Number of trials in the slice that ended."""
    best: str | None
    """Id of the slice's best trial; None if all its trials failed."""
    value: float | None
    """Objective of the slice's best trial; None if all its trials failed."""
    quantiles: tuple[float | None, float | None, float | None]
    """5, 50 and 95 % quantiles of the best of n trials; n is the number of settings in the smallest slice. None: all n failed."""


class Isolation(FrozenModel):
    """The best trial for each value of one hyperparameter; the other hyperparameters are free."""

    parameter: str
    drawn: int
    """Number of settings drawn from each slice. It is the same for all slices, so that they have equal chances."""
    repeats: bool = False
    """Whether some setting was run more than once. Its repeats count as one setting, with their median."""
    slices: tuple[Slice, ...]
    p: float
    """Probability (p-value) that by chance the median best of some slice ranks as low, adjusted for all hyperparameters."""
    differ: tuple[str, ...] = ()
    """Other hyperparameters whose values in the best and in the worst slice do not overlap."""


class Speed(FrozenModel):
    """The throughput at one batch size, with a 90 % interval whose ends are None if unknown."""

    batch_size: float
    examples_per_s: float
    low: float | None
    high: float | None
    trials: tuple[str, ...]


class NeededTraining(FrozenModel):
    """Amount of training that one batch size needed to reach the target."""

    batch_size: float
    typical: float
    """Median or minimum over the trials, in the unit of the `ToTarget` that contains it."""
    seconds: float | None
    trials: tuple[str, ...]


class ToTarget(FrozenModel):
    """Amount of training to a common target value at each batch size."""

    unit: Literal["epochs", "examples"]
    target: float | None
    """Target value of the objective; None if the objective itself is a training time."""
    repeats: bool
    """Whether each batch size has repeats of one setting, compared by their median. If not, the fastest setting of each batch size
    counts.
    """
    sizes: tuple[NeededTraining, ...]


class Importance(FrozenModel):
    """Share of the variation between trials that a hyperparameter or a pair of them explains, with a 90 % interval."""

    parameters: tuple[str, ...]
    """One hyperparameter, if the share includes its interactions; or a pair, if the share is their interaction only."""
    share: float
    low: float
    high: float
    p: float | None = None
    """p-value of a pair's interaction under the hypothesis of additive effects, adjusted for all pairs; None for one
    hyperparameter.
    """


class Importances(FrozenModel):
    """Importance of every hyperparameter of the study and of interacting pairs."""

    settings: int
    p: float
    """Probability (p-value) of a relation at least this strong if the results do not depend on the hyperparameters."""
    each: tuple[Importance, ...]
    """Importance of each hyperparameter, the largest share first."""
    pairs: tuple[Importance, ...]
    """Importance of pairs, the most significant interaction first."""


class CloseUp(FrozenModel):
    """Every logged point of a training curve near a step that a finding marks."""

    rule: str
    trial: str
    metric: str
    step: int
    label: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class JustAbove(FrozenModel):
    """The trials with the next higher learning rates above the best trial's learning rate."""

    parameter: str
    metric: str
    best: float
    """Learning rate of the study's best trial."""
    trials: tuple[str, ...]
    rates: tuple[float, ...]
    failed: int


class Figures(FrozenModel):
    """The data of all figures in the report."""

    trials: tuple[TrialRow, ...]
    """One row per trial, in the order of the study."""
    curves: tuple[CurveSet, ...] = ()
    best_trials: tuple[str, ...] = ()
    """Ids of the trials whose curves are shown, best trial first."""
    grad_norm: NormHistogram | None = None
    isolations: tuple[Isolation, ...] = ()
    best_of: BestOf | None = None
    speeds: tuple[Speed, ...] = ()
    to_target: ToTarget | None = None
    importances: Importances | None = None
    close_ups: tuple[CloseUp, ...] = ()
    just_above: JustAbove | None = None
    compact_curves: tuple[CompactCurves, ...] = ()

    @property
    def effects(self) -> dict[str, float]:
        """Share of the variation between settings that each hyperparameter explains; empty if no effect was found."""
        found = self.importances
        return {i.parameters[0]: i.share for i in found.each} if found is not None and found.p <= FALSE_ALARMS else {}

    @cached_property
    def by_id(self) -> dict[str, TrialRow]:
        """The rows of the trials by trial id."""
        return {t.id: t for t in self.trials}

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each trial in `trials`, by trial id."""
        return {t.id: i for i, t in enumerate(self.trials)}
