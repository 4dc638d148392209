"""A study as data: trials, their hyperparameters and their curves, independent of any tracker.

Curves live in one columnar block per metric; a `Curve` is a view of it. A cost is the objective with its sign chosen so that lower
is better; rules compare costs and never ask for the direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from advisor.model.space import BoolArray, FloatArray, IntArray, Value
from advisor.model.spec import Parameter, StudySpec

Status = Literal["complete", "diverged", "infeasible", "stopped", "no_data", "running"]
"""The values of `advisor.contract.STATUSES`."""

Signal = Literal[
    "train_loss",  # loss on training batches: dense, noisy
    "train_eval_loss",  # the loss evaluated on (a sample of) the training set
    "train_objective",  # the objective's twin on the training set: train/accuracy for validation/accuracy
    "valid_loss",  # the loss on validation data
    "grad_norm",  # global L2 norm of the gradient before clipping
    "learning_rate",
    "step_time",  # seconds per optimizer step
    "data_wait",  # seconds of it spent waiting for data
    "compute_time",  # seconds from a batch's arrival to the end of its step, on the device where that is a GPU
    "examples_per_second",
    "clipped",  # share of clipped updates
    "device_utilisation",  # share of the time in which the device computed
    "device_memory",  # most bytes that tensors took on the device so far
]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one trial: `steps` strictly increasing, `values` may hold NaN and infinities; all of shape (n,)."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    """Seconds since the trial's start; NaN where unknown."""

    def __len__(self) -> int:
        return len(self.steps)

    def __neg__(self) -> Curve:
        return Curve(self.steps, -self.values, self.times)

    @property
    def finite(self) -> Curve:
        """The part of the curve with finite values."""
        keep = np.isfinite(self.values)
        return self if keep.all() else Curve(self.steps[keep], self.values[keep], self.times[keep])


_EMPTY = Curve(np.empty(0, np.int64), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class CurveBlock:
    """All curves of one metric, trial after trial, each sorted by step and without duplicate steps."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    offsets: IntArray
    """Shape (number of trials + 1,): the points of trial i are offsets[i]:offsets[i + 1]."""

    def curve(self, trial: int) -> Curve:
        """Return the curve of the trial at index `trial`, a view; empty if it logged none."""
        part = slice(int(self.offsets[trial]), int(self.offsets[trial + 1]))
        return Curve(self.steps[part], self.values[part], self.times[part])


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run with one setting of the hyperparameters."""

    index: int
    """Position in `Study.trials`."""
    id: str
    """The tracker's id of the run."""
    name: str
    status: Status
    params: Mapping[str, Value]
    seed: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that an adapter or importer recorded, as text: keys are `advisor.contract` tags without `advisor.`."""
    started: float | None = None
    """Seconds since the epoch."""
    ended: float | None = None
    round: int | None = None
    """The earlier round that the trial belongs to; None for a trial of this study."""

    def fact(self, name: str) -> float:
        """Return the fact `name` as a number; NaN if it is missing or not a number."""
        try:
            return float(self.facts.get(name, "nan"))
        except ValueError:
            return math.nan


@dataclass(frozen=True)
class Study:
    """A set of trials that share an objective and a search space."""

    spec: StudySpec
    """The declared or inferred space: `spec.parameters` holds every hyperparameter."""
    trials: tuple[Trial, ...]
    metrics: Mapping[str, CurveBlock]
    """By metric name as logged."""
    signals: Mapping[Signal, str] = field(default_factory=dict)
    """Metric name of each signal."""
    inferred: Mapping[str, str] = field(default_factory=dict)
    """How undeclared properties were inferred: keys "objective", "direction" and names of parameters."""
    warnings: tuple[str, ...] = ()
    """Warnings about the data, one sentence each."""
    unit: Literal["step", "epoch"] = "step"
    """Unit of the curves' steps: optimizer steps, or epochs if nothing else was logged."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.spec.study

    @property
    def minimize(self) -> bool:
        """Whether lower values of the objective are better."""
        return self.spec.objective.direction == "minimize"

    def at(self, step: int) -> str:
        """Return a step in words: `step 1,200`."""
        return f"{self.unit} {step:,}"

    def length(self, steps: int) -> str:
        """Return a number of steps in words: `1,200 steps`."""
        return f"{steps:,} {self.unit}{'s' * (steps != 1)}"

    @cached_property
    def probe(self) -> str | None:
        """The probe that the runs are, see `advisor.contract.TAG_PROBE`; None if they are trials."""
        kinds = {trial.facts.get("probe", self.spec.probe) for trial in self.trials}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def searched(self) -> dict[str, Parameter]:
        """The hyperparameters that the study varies."""
        return self.spec.searched

    def metric(self, trial: Trial, name: str) -> Curve:
        """Return the trial's curve of the metric with this logged name; empty if it has none."""
        block = self.metrics.get(name)
        return _EMPTY if block is None else block.curve(trial.index)

    def curve(self, trial: Trial, signal: Signal) -> Curve:
        """Return the trial's curve of a signal, whatever the name of its metric; empty if it has none."""
        name = self.signals.get(signal)
        return _EMPTY if name is None else self.metric(trial, name)

    def peaks(self, trial: Trial, signal: Signal) -> Curve:
        """Return the curve of a signal with the maximum of each logged window, where logged, so that no spike is averaged away."""
        name = self.signals.get(signal)
        if name is None:
            return _EMPTY
        largest = self.metric(trial, name + ".max")
        return largest if len(largest) else self.metric(trial, name)

    def has(self, signal: Signal) -> bool:
        """Return whether any trial logged the signal."""
        return signal in self.signals

    def cost_curve(self, trial: Trial) -> Curve:
        """Return the objective over training with lower values better; non-finite values are included."""
        curve = self.metric(trial, self.spec.objective.metric)
        return curve if self.minimize else -curve

    def train_cost_curve(self, trial: Trial) -> Curve:
        """Return the fit to the training data over training, lower is better: the objective on training data, else a training
        loss.

        The objective on training data is comparable with `cost_curve`; a loss only in its direction. Empty if neither was logged.
        """
        twin = self.curve(trial, "train_objective")
        if len(twin):
            return twin if self.minimize else -twin
        evaluated = self.curve(trial, "train_eval_loss")
        return evaluated if len(evaluated) else self.curve(trial, "train_loss")

    def planned_steps(self, trial: Trial) -> float:
        """Return the planned steps of the trial: its own fact, else the study's number; NaN if neither is known."""
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0:
            return own
        return float(self.spec.max_train_steps) if self.spec.max_train_steps is not None else math.nan

    def cut_short(self, trial: Trial) -> bool:
        """Return whether evaluations end before 90 % of the trial's recorded plan or, without one, whether it was stopped."""
        evaluated = self.cost_curve(trial).steps
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0 and len(evaluated):
            return bool(evaluated[-1] < 0.9 * own)
        return trial.status == "stopped"

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Results of functions of this study that are decorated with `advisor.computed.computed`."""
        return {}

    @cached_property
    def costs(self) -> FloatArray:
        """Best cost of each trial over its training, shape (number of trials,); NaN if it has no finite value."""
        best = np.full(len(self.trials), np.nan)
        for trial in self.trials:
            finite = self.cost_curve(trial).finite
            if len(finite):
                best[trial.index] = finite.values.min()
        return best

    @cached_property
    def ended(self) -> BoolArray:
        """Whether each trial ended and therefore counts as evidence, shape (number of trials,); False without data."""
        return np.array([t.status not in ("running", "no_data") for t in self.trials], dtype=np.bool_)

    @cached_property
    def feasible(self) -> BoolArray:
        """Whether each trial ended with a finite objective without diverging or crashing, shape (number of trials,)."""
        fine = np.array([t.status in ("complete", "stopped") for t in self.trials], dtype=np.bool_)
        return fine & np.isfinite(self.costs)

    def ranked(self, trials: Sequence[Trial] | None = None) -> list[Trial]:
        """Return the feasible trials (of `trials`, if given), best first."""
        return list(self._ranked) if trials is None else self._sorted(trials)

    @cached_property
    def _ranked(self) -> list[Trial]:
        return self._sorted(self.trials)

    def _sorted(self, trials: Sequence[Trial]) -> list[Trial]:
        chosen = [t for t in trials if self.feasible[t.index]]
        return sorted(chosen, key=lambda t: (self.costs[t.index], t.index))

    def objective_value(self, cost: float) -> float:
        """Return a cost as a value of the objective, in the objective's direction."""
        return cost if self.minimize else -cost

    def positions(self, name: str, trials: Sequence[Trial] | None = None) -> FloatArray:
        """Return positions of trials in the range of parameter `name`: 0 at its low end, 1 at its high end; NaN without a value."""
        chosen = self.trials if trials is None else trials
        return self.spec.parameters[name].to_unit([t.params.get(name, "") for t in chosen])
