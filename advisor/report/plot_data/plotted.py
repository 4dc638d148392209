"""The data of the pictures that look at a study as a whole: computed before anything is drawn."""

from __future__ import annotations

from typing import Literal

from advisor.model.frozen import FrozenModel


class BestOf(FrozenModel):
    """How good the best of n trials is that are drawn from this study's: what another study of n trials might find."""

    sizes: tuple[int, ...]
    quantiles: tuple[tuple[float | None, ...], ...]
    """For each size the values that the best reaches or beats in 5, 25, 50, 75 and 95 % of studies; None where it failed there."""


class Slice(FrozenModel):
    """The trials in one part of a hyperparameter's range, or with one choice."""

    label: str
    low: float | None = None
    high: float | None = None
    """Least and largest value in it; None for a choice."""
    trials: int
    """Trials that ended."""
    best: str | None
    """Id of the best of them; None where all failed."""
    value: float | None
    """Its value of the objective."""
    quantiles: tuple[float | None, float | None, float | None]
    """What the best of as many trials as the smallest slice has reaches or beats in 5, 50 and 95 % of draws; None for a failure."""


class Isolation(FrozenModel):
    """The best trial for each value of a hyperparameter, all others chosen as well as they were."""

    parameter: str
    drawn: int
    """Trials that are drawn from each slice, so that none has more chances than another."""
    slices: tuple[Slice, ...]
    p: float
    """How often luck would leave some slice's best result as far behind as the worst one's is; adjusted for all of them."""


class Speed(FrozenModel):
    """The throughput at one batch size."""

    batch_size: float
    examples_per_s: float
    low: float | None
    high: float | None
    """Its 90 % interval; None where one trial says nothing of it."""
    trials: tuple[str, ...]


class Needed(FrozenModel):
    """How much training one batch size took to the target."""

    batch_size: float
    typical: float
    """Epochs or examples: the median of repeats of one setting, or the least of several settings."""
    seconds: float | None
    trials: tuple[str, ...]


class ToTarget(FrozenModel):
    """Batch sizes on their way to a value of the objective that all of them reach."""

    unit: Literal["epochs", "examples"]
    target: float | None
    """Value of the objective; None where the objective itself counts what it took."""
    repeats: bool
    """Whether repeats of one setting are compared; otherwise the best of several settings."""
    sizes: tuple[Needed, ...]


class Importance(FrozenModel):
    """How much of the differences between trials goes with something, as shares with a 90 % interval."""

    parameters: tuple[str, ...]
    """One hyperparameter, alone and with others; or two, what they do only together."""
    share: float
    low: float
    high: float
    p: float | None = None
    """Of two: how often effects that add up would seem to interact as much, adjusted for all pairs."""


class Importances(FrozenModel):
    """What matters in the study."""

    settings: int
    p: float
    """How often results that have nothing to do with the hyperparameters would show as much."""
    each: tuple[Importance, ...]
    """Largest share first."""
    pairs: tuple[Importance, ...]
    """The likeliest interaction first."""


class CloseUp(FrozenModel):
    """Every logged point of a curve around a step that a finding points at."""

    rule: str
    trial: str
    metric: str
    step: int
    label: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class JustAbove(FrozenModel):
    """The trials whose learning rates lie next above the best trial's."""

    parameter: str
    metric: str
    best: float
    """The best trial's learning rate."""
    trials: tuple[str, ...]
    rates: tuple[float, ...]
    failed: int


class Sketches(FrozenModel):
    """One metric of every trial, to be drawn on one pair of axes."""

    metric: str
    columns: int
    """Equal parts of the axis of steps, of each of which a curve has the least and the largest value."""
    first_step: int
    last_step: int
    log_steps: bool
    low: float
    high: float
    log: bool
    beyond: bool
    """Whether some values lie beyond the axis."""
    curves: tuple[str | None, ...]
    """Of each trial in the order of the study, as `sketch.py` writes them: empty where it logged none, None if left out."""
