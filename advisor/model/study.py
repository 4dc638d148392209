"""Represents a study as data: trials with their hyperparameters and curves, independent of the experiment tracker.

One block of columns holds all curves of a metric; a `Curve` is a view of a part of the block. The cost of a trial is its
objective value, with reversed sign if higher values are better, so lower costs are always better. Rules compare costs, so they
do not need to know the direction of the objective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from advisor.model.reading import Decision, WorkloadKind
from advisor.model.space import BoolArray, FloatArray, HyperparameterValue, IntArray
from advisor.model.spec import Parameter, StudySpec

TrialStatus = Literal[
    "complete",
    "early_stopped",  # the training script's own early-stopping rule (patience) ended the trial; its best result is valid
    "pruned",  # ended by a tuner because other trials were better; the result at full length is unknown
    "stopped",
    "diverged",
    "not_learned",  # the trial ended on a degenerate plateau, for example at chance level
    "infeasible",
    "no_data",
    "running",
]
"""Status of a trial. `advisor.contract.STATUSES` explains the statuses that adapters write; all others are inferred from the
curves."""

DIGITS = 6
"""Number of significant digits in which results are compared; results that agree in these digits tie."""

StepUnit = Literal["step", "epoch", "second", "millisecond"]

Signal = Literal[
    "train_loss",  # loss on training batches: logged often, noisy
    "train_eval_loss",  # the loss evaluated on (a sample of) the training set
    "train_objective",  # the objective computed on the training set: train/accuracy for validation/accuracy
    "valid_loss",  # the loss on validation data
    "grad_norm",  # global L2 norm of the gradient before clipping
    "learning_rate",
    "step_time",  # seconds per optimizer step
    "data_wait",  # seconds per step spent waiting for data
    "compute_time",  # seconds from a batch's arrival to the end of its step, measured on the GPU if there is a GPU
    "examples_per_second",
    "clipped",  # share of updates whose gradient was clipped
    "loss_scale",  # factor by which the gradient scaler multiplies the loss
    "skipped_steps",  # number of steps that the gradient scaler skipped just before this step
    "attention_logit",  # largest attention logit of a batch over all layers, before the softmax
    "device_utilisation",  # share of time during which the device was computing
    "device_memory",  # peak number of bytes that tensors have used on the device so far
    "policy_reward",  # mean reward of the completions that a policy is trained on
    "policy_reward_sd",  # standard deviation of the rewards of a batch of completions
    "policy_entropy",  # mean entropy of the policy's next token
    "policy_kl",  # mean KL divergence of the policy from its reference
    "policy_clip_ratio",  # share of tokens whose importance ratio exceeds the upper clipping bound, or any bound
    "groups_without_advantage",  # share of groups of completions whose rewards are all equal
    "rollout_mismatch",  # mean absolute difference of log probabilities between the engine that samples and the trainer
    "train_chosen_logp",  # mean log probability of the preferred answers of training batches, in a training by preferences
    "valid_chosen_logp",  # the same on validation data
    "train_margin",  # margin between the rewards of preferred and rejected answers of training batches
    "valid_margin",  # the same on validation data
    "completions_truncated",  # share of completions that were cut off at the maximum length
]


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve of one metric in one trial; all arrays have shape (n,). `steps` strictly increase; `values` may be NaN or infinite."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    """Time of each point, in seconds since the start of the trial; NaN if unknown."""

    def __len__(self) -> int:
        return len(self.steps)

    def __neg__(self) -> Curve:
        return Curve(self.steps, -self.values, self.times)

    @classmethod
    def empty(cls) -> Curve:
        """Return a curve without points."""
        return cls(np.empty(0, np.int64), np.empty(0), np.empty(0))

    @property
    def finite(self) -> Curve:
        """The points of the curve whose values are finite."""
        keep = np.isfinite(self.values)
        return self if keep.all() else Curve(self.steps[keep], self.values[keep], self.times[keep])


def round_to_result_digits(value: float) -> float:
    """Round a result to `DIGITS` significant digits, because sums of the same numbers may differ in the last digits."""
    return float(f"{value:.{DIGITS}g}")


_FEASIBLE_STATUSES = frozenset(("complete", "early_stopped", "pruned", "stopped"))
_EMPTY_CURVE = Curve.empty()


@dataclass(frozen=True, slots=True)
class CurveBlock:
    """All curves of one metric, one trial after another; each curve is sorted by step and has no duplicate steps."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    offsets: IntArray
    """Array of shape (number of trials + 1,); the points of trial i have the indices offsets[i] to offsets[i + 1] - 1."""

    def curve(self, trial: int) -> Curve:
        """Return a view of the curve of the trial with index `trial`; empty if this trial did not log the metric."""
        part = slice(int(self.offsets[trial]), int(self.offsets[trial + 1]))
        return Curve(self.steps[part], self.values[part], self.times[part])


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run with one hyperparameter setting."""

    index: int
    """Index of the trial in `Study.trials`, from 0."""
    id: str
    """Id of the run in the experiment tracker."""
    name: str
    status: TrialStatus
    params: Mapping[str, HyperparameterValue]
    seed: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the run, as text, which an adapter or importer recorded. The keys are the names of tags in
    `advisor.contract`, without their prefix `advisor.`."""
    started: float | None = None
    """Start time of the trial in seconds since 1970."""
    ended: float | None = None
    round: int | None = None
    """Number of the earlier round to which the trial belongs; None if it belongs to this study."""
    reason: str = ""
    """Reason for an inferred status, as a clause such as "its training loss is NaN from step 300 on"; empty for a recorded
    status."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that the user set on the run."""

    def fact(self, name: str) -> float:
        """Return a recorded fact as a number; NaN if the fact is missing or is not a number."""
        try:
            return float(self.facts.get(name, "nan"))
        except ValueError:
            return math.nan

    @property
    def commit(self) -> str:
        """Git commit of the training code, from an adapter or else from MLflow; empty if unknown."""
        return self.facts.get("git_commit") or self.facts.get("source_commit", "")

    @property
    def ran_out_of_memory(self) -> bool:
        """True if the trial crashed with an error that reports that memory ran out."""
        return self.status == "infeasible" and self.facts.get("error", "").lower().startswith("out of memory")

    def parsed_fact(self, name: str) -> Any:
        """Return a recorded fact, parsed from JSON. Raises ValueError if the fact is missing, malformed or nested too deeply."""
        try:
            return json.loads(self.facts.get(name, ""))
        except RecursionError:
            raise ValueError(f"the fact {name!r} is nested too deeply") from None


@dataclass(frozen=True)
class Study:
    """A set of trials with one objective and one search space."""

    spec: StudySpec
    """The study file, which was declared or inferred; it contains every hyperparameter of the study."""
    trials: tuple[Trial, ...]
    metrics: Mapping[str, CurveBlock]
    """All curves, by the name under which their metric was logged."""
    signals: Mapping[Signal, str] = field(default_factory=dict)
    """Name of the metric that contains each kind of curve, such as "train_loss"."""
    inferred: Mapping[str, str] = field(default_factory=dict)
    """Explanations of how properties of the study were inferred that the user did not declare. The keys are "objective",
    "direction" and names of parameters."""
    warnings: tuple[str, ...] = ()
    """Warnings about the data of the study, each one sentence."""
    unit: StepUnit = "step"
    """Unit of the curves' steps: optimizer steps, epochs if only epochs were logged, or a unit of time."""
    kind: WorkloadKind = "unknown"
    """Kind of workload."""
    target: float | None = None
    """Objective value at which all trials stopped, so that their results are equal by design; None if trials did not stop this
    way."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    """Steps per unit of each fixed hyperparameter that sets the training length although its name does not say so."""
    decisions: tuple[Decision, ...] = ()
    """Decisions on how the experiment was read as a study, which the report states."""
    outside: tuple[Trial, ...] = ()
    """Trials of earlier rounds that are left out only because they lie outside the search space of this study. Indices of these
    trials are not valid in this study."""

    @property
    def name(self) -> str:
        return self.spec.study

    @property
    def minimize(self) -> bool:
        """True if lower values of the objective are better."""
        return self.spec.objective.direction == "minimize"

    def at(self, step: int) -> str:
        """Return a step as text with its unit, such as `step 1,200`."""
        return f"{self.unit} {step:,}"

    def length(self, steps: int) -> str:
        """Return a number of steps as text with its unit, such as `1,200 steps`."""
        return f"{steps:,} {self.unit}{'s' * (steps != 1)}"

    @cached_property
    def probe(self) -> str | None:
        """Kind of the probe (short diagnostic run), if all runs of the study are probes of one kind; else None (see
        `advisor.contract.TAG_PROBE`)."""
        kinds = {trial.facts.get("probe", self.spec.probe) for trial in self.trials}
        return kinds.pop() if len(kinds) == 1 else None

    @cached_property
    def searched(self) -> dict[str, Parameter]:
        """Hyperparameters that the study varies, by name."""
        return self.spec.searched

    def metric(self, trial: Trial, name: str) -> Curve:
        """Return the trial's curve of the metric with this name; empty if the trial did not log this metric."""
        block = self.metrics.get(name)
        return _EMPTY_CURVE if block is None else block.curve(trial.index)

    def curve(self, trial: Trial, signal: Signal) -> Curve:
        """Return the trial's curve of a kind such as "train_loss", whatever its metric's name is; empty if the trial did not
        log it."""
        name = self.signals.get(signal)
        return _EMPTY_CURVE if name is None else self.metric(trial, name)

    def peaks(self, trial: Trial, signal: Signal) -> Curve:
        """Return the maximum of the curve in each logging window, because means hide spikes; without logged maxima, return the
        curve."""
        name = self.signals.get(signal)
        if name is None:
            return _EMPTY_CURVE
        largest = self.metric(trial, name + ".max")
        return largest if len(largest) else self.metric(trial, name)

    def has(self, signal: Signal) -> bool:
        """Return True if any trial logged a curve of this kind."""
        return signal in self.signals

    def cost_curve(self, trial: Trial) -> Curve:
        """Return the curve of the trial's cost (lower is better), including non-finite values."""
        curve = self.metric(trial, self.spec.objective.metric)
        return curve if self.minimize else -curve

    def train_cost_curve(self, trial: Trial) -> Curve:
        """Return the trial's cost on training data: the objective on training data or, if it was not logged, a training loss.

        The curve is empty if the trial logged neither the objective on training data nor a training loss. The objective on
        training data is comparable with `cost_curve`, but a training loss is not.
        """
        train_objective = self.curve(trial, "train_objective")
        if len(train_objective):
            return train_objective if self.minimize else -train_objective
        evaluated = self.curve(trial, "train_eval_loss")
        return evaluated if len(evaluated) else self.curve(trial, "train_loss")

    def planned_steps(self, trial: Trial) -> float:
        """Return the number of steps that the trial, or else the study, planned; NaN if unknown."""
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0:
            return own
        return float(self.spec.max_train_steps) if self.spec.max_train_steps is not None else math.nan

    def planned_length(self, trial: Trial, last: int) -> int:
        """Return the trial's planned steps, or its `last` step if its plan is unknown and it was not cut short."""
        planned_steps = self.planned_steps(trial)
        # If steps are counted from 0, a training of 200 steps ends at step 199.
        counts_from_0 = planned_steps == last + 1
        length_is_known = (
            counts_from_0
            or trial.status in ("stopped", "early_stopped", "pruned")
            or math.isfinite(trial.fact("max_train_steps"))
        )
        return max(last, round(planned_steps)) if length_is_known and math.isfinite(planned_steps) else last

    def cut_short(self, trial: Trial) -> bool:
        """Return True if the trial was pruned or stopped early, or was evaluated for less than 90 % of its planned steps.

        If the number of planned steps is unknown, return True if the trial was stopped.
        """
        if trial.status in ("pruned", "early_stopped"):
            return True
        evaluated = self.cost_curve(trial).steps
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0 and len(evaluated):
            return bool(evaluated[-1] < 0.9 * own)
        return trial.status == "stopped"

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Cache of results of functions with the decorator `advisor.computed.computed`."""
        return {}

    @cached_property
    def costs(self) -> FloatArray:
        """Lowest cost of each trial over its training, shape (number of trials,); NaN if the trial has no finite cost."""
        best = np.full(len(self.trials), np.nan)
        for trial in self.trials:
            finite = self.cost_curve(trial).finite
            if len(finite):
                best[trial.index] = finite.values.min()
        return best

    @cached_property
    def ended(self) -> BoolArray:
        """Mask of the trials that ended and have data, shape (number of trials,); only these trials count as evidence."""
        return np.array([t.status not in ("running", "no_data") for t in self.trials], dtype=np.bool_)

    @cached_property
    def feasible(self) -> BoolArray:
        """Mask of the trials that have a finite objective and did not fail, shape (number of trials,); it includes pruned
        trials."""
        is_feasible = np.array([t.status in _FEASIBLE_STATUSES for t in self.trials], dtype=np.bool_)
        return is_feasible & np.isfinite(self.costs)

    @cached_property
    def comparable(self) -> BoolArray:
        """Mask of the feasible trials that have a result at full length, shape (number of trials,).

        Trials that were pruned or stopped before 90 % of their planned steps are left out, because their results at full length
        are unknown. If no trial is complete, the mask contains all feasible trials.
        """
        complete = self.feasible & np.array([not self._is_full_result_unknown(t) for t in self.trials], dtype=np.bool_)
        return complete if complete.any() else self.feasible

    def _is_full_result_unknown(self, trial: Trial) -> bool:
        steps = self.cost_curve(trial).steps
        stopped = trial.status == "stopped" and len(steps) > 0 and bool(steps[-1] < 0.9 * self.planned_steps(trial))
        return trial.status == "pruned" or stopped

    def ranked(self, trials: Sequence[Trial] | None = None) -> list[Trial]:
        """Return the comparable trials, best first: all of the study, or only those in `trials`.

        Trials whose best costs agree to `DIGITS` digits are ordered by their mean cost in the second half of training.
        """
        if trials is None:
            return list(self._ranked)
        indices = {t.index for t in trials}
        return [t for t in self._ranked if t.index in indices]

    @cached_property
    def _ranked(self) -> list[Trial]:
        comparable_trials = [t for t in self.trials if self.comparable[t.index]]
        return sorted(comparable_trials, key=self.rank_key)

    def rank_key(self, trial: Trial) -> tuple[float, float]:
        """Return a key to sort trials by: (best cost, mean cost in the second half of training). Trials with the same key tie."""
        return round_to_result_digits(self.costs[trial.index]), round_to_result_digits(self.late_cost(trial))

    def late_cost(self, trial: Trial) -> float:
        """Return the mean cost over the second half of the trial's evaluations."""
        values = self.cost_curve(trial).finite.values
        return float(np.mean(values[len(values) // 2 :]))

    def objective_value(self, cost: float) -> float:
        """Return the objective value of a cost, with the original sign."""
        return cost if self.minimize else -cost

    def positions(self, name: str, trials: Sequence[Trial] | None = None) -> FloatArray:
        """Return each trial's position in the range of parameter `name`: 0 at the low end, 1 at the high end, NaN without the
        parameter."""
        chosen = self.trials if trials is None else trials
        return self.spec.parameters[name].to_positions([t.params.get(name, "") for t in chosen])
