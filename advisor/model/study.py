"""Represents a study as data, independent of the tracker. One block of columns holds all curves of a metric. The cost of a
trial is its objective value, with reversed sign if higher values are better, so rules do not need to know the direction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from advisor.model.reading import Decision, WorkloadKind
from advisor.model.space import BoolArray, FloatArray, IntArray, Params
from advisor.model.spec import Parameter, StudySpec

T = TypeVar("T")

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
"""`advisor.contract.STATUSES` explains the statuses that adapters write; all other statuses are inferred from the curves."""

RESULT_DIGITS = 6
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
    """Curve of one metric in one trial, all arrays (n,). `steps` strictly increase; `values` may be NaN or infinite."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    """Seconds since the start of the trial, or NaN if unknown."""

    def __len__(self) -> int:
        return len(self.steps)

    def __neg__(self) -> Curve:
        return Curve(self.steps, -self.values, self.times)

    @classmethod
    def empty(cls) -> Curve:
        return cls(np.empty(0, np.int64), np.empty(0), np.empty(0))

    @property
    def finite(self) -> Curve:
        """The points whose values are finite."""
        is_finite = np.isfinite(self.values)
        return self if is_finite.all() else Curve(self.steps[is_finite], self.values[is_finite], self.times[is_finite])


def round_to_result_digits(value: float) -> float:
    """Round a result, because sums of the same numbers may differ in the last digits."""
    return float(f"{value:.{RESULT_DIGITS}g}")


_FEASIBLE_STATUSES = frozenset(("complete", "early_stopped", "pruned", "stopped"))
_EMPTY_CURVE = Curve.empty()


@dataclass(frozen=True, slots=True)
class CurveBlock:
    """All curves of one metric, one trial after another, each sorted by step without duplicate steps."""

    steps: IntArray
    values: FloatArray
    times: FloatArray
    offsets: IntArray
    """The points of trial i have the indices offsets[i] to offsets[i + 1] - 1."""

    def curve(self, trial: int) -> Curve:
        """Return a view of the curve of the trial with this index; empty if the trial did not log the metric."""
        point_slice = slice(int(self.offsets[trial]), int(self.offsets[trial + 1]))
        return Curve(self.steps[point_slice], self.values[point_slice], self.times[point_slice])


CurveBlocks: TypeAlias = Mapping[str, CurveBlock]
"""Curves of each metric, by its name."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run with one hyperparameter setting."""

    index: int
    """Index of the trial in `Study.trials`, from 0."""
    id: str
    """Id of the run in the experiment tracker."""
    name: str
    status: TrialStatus
    params: Params
    seed: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that an adapter or importer recorded, by the name of their tag in `advisor.contract` without `advisor.`."""
    started: float | None = None
    """Start time of the trial in seconds since 1970."""
    ended: float | None = None
    round: int | None = None
    """Number of the earlier round to which the trial belongs, if any."""
    reason: str = ""
    """Reason for an inferred status, such as "its training loss is NaN from step 300 on"; empty for a recorded status."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that the user set on the run."""

    def fact(self, name: str) -> float:
        """Return a recorded fact as a number, or NaN if the fact is missing or not a number."""
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
        """True if the trial crashed with an out-of-memory error."""
        return self.status == "infeasible" and self.facts.get("error", "").lower().startswith("out of memory")

    def parsed_fact(self, name: str) -> Any:
        """Return a recorded fact, parsed from JSON. Raises ValueError if it is missing, malformed or too deeply nested."""
        try:
            return json.loads(self.facts.get(name, ""))
        except RecursionError:
            raise ValueError(f"the fact {name!r} is nested too deeply") from None

    def json_fact(self, name: str, kind: type[T]) -> T:
        """Return a recorded fact that is JSON of the given type, or an empty value if the fact is missing or malformed."""
        try:
            value = self.parsed_fact(name)
        except ValueError:
            return kind()
        return value if isinstance(value, kind) else kind()


@dataclass(frozen=True)
class Study:
    """A set of trials with one objective and one search space."""

    spec: StudySpec
    """The study file, declared or inferred; it contains every hyperparameter."""
    trials: tuple[Trial, ...]
    metrics: CurveBlocks
    """All curves, by the name of their metric."""
    signals: Mapping[Signal, str] = field(default_factory=dict)
    """Name of the metric for each kind of curve."""
    inferred: Mapping[str, str] = field(default_factory=dict)
    """How undeclared properties were inferred. The keys are "objective", "direction" and names of parameters."""
    warnings: tuple[str, ...] = ()
    """Warnings about the data, each one sentence."""
    unit: StepUnit = "step"
    """Unit of the steps: optimizer steps, epochs if metrics were logged only by epoch, or a unit of time."""
    kind: WorkloadKind = "unknown"
    target: float | None = None
    """Objective value at which all trials stopped, so that results are equal by design, if any."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    """Steps per unit of each fixed hyperparameter that sets the training length although its name does not say so."""
    decisions: tuple[Decision, ...] = ()
    """Decisions on how the experiment was read as a study, which the report lists."""
    outside: tuple[Trial, ...] = ()
    """Trials of earlier rounds outside of the search space; their indices are not valid in this study."""

    @property
    def name(self) -> str:
        return self.spec.study

    @property
    def minimize(self) -> bool:
        return self.spec.objective.direction == "minimize"

    def at(self, step: int) -> str:
        """Return a step as text with its unit, such as `step 1,200`."""
        return f"{self.unit} {step:,}"

    def length(self, steps: int) -> str:
        """Return a number of steps as text, such as `1,200 steps`."""
        return f"{steps:,} {self.unit}{'s' * (steps != 1)}"

    @cached_property
    def probe(self) -> str | None:
        """Kind of the probe (short diagnostic run), if all runs are probes of one kind (see `advisor.contract.TAG_PROBE`)."""
        probe_kinds = {trial.facts.get("probe", self.spec.probe) for trial in self.trials}
        return probe_kinds.pop() if len(probe_kinds) == 1 else None

    @cached_property
    def searched(self) -> dict[str, Parameter]:
        return self.spec.searched

    def metric(self, trial: Trial, name: str) -> Curve:
        """Return the trial's curve of the metric with this name; empty if it was not logged."""
        block = self.metrics.get(name)
        return _EMPTY_CURVE if block is None else block.curve(trial.index)

    def curve(self, trial: Trial, signal: Signal) -> Curve:
        """Return the trial's curve of a kind such as "train_loss", whatever its metric's name; empty if it was not logged."""
        return self.metric(trial, self.signals.get(signal, ""))

    def peaks(self, trial: Trial, signal: Signal) -> Curve:
        """Return the maxima of the logging windows, because means hide spikes, or the metric's curve if none were logged."""
        window_maxima = self.metric(trial, self.signals[signal] + ".max") if self.has(signal) else _EMPTY_CURVE
        return window_maxima if len(window_maxima) else self.curve(trial, signal)

    def has(self, signal: Signal) -> bool:
        return signal in self.signals

    def cost_curve(self, trial: Trial) -> Curve:
        """Return the curve of the trial's cost (lower is better), including non-finite values."""
        curve = self.metric(trial, self.spec.objective.metric)
        return curve if self.minimize else -curve

    def train_cost_curve(self, trial: Trial) -> Curve:
        """Return the objective on training data, which is comparable with `cost_curve`, or else a training loss."""
        train_objective = self.curve(trial, "train_objective")
        if len(train_objective):
            return train_objective if self.minimize else -train_objective
        train_eval_curve = self.curve(trial, "train_eval_loss")
        return train_eval_curve if len(train_eval_curve) else self.curve(trial, "train_loss")

    def planned_steps(self, trial: Trial) -> float:
        """Return the number of steps that the trial, or else the study, planned, or NaN if unknown."""
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0:
            return own
        return float(self.spec.max_train_steps) if self.spec.max_train_steps is not None else math.nan

    def planned_length(self, trial: Trial, last: int) -> int:
        """Return the trial's planned steps, or its `last` step if the plan is unknown and the trial was not cut short."""
        planned_steps = self.planned_steps(trial)
        # If steps are counted from 0, a training of 200 steps ends at step 199.
        is_known = planned_steps == last + 1 or math.isfinite(trial.fact("max_train_steps"))
        is_known = is_known or trial.status in ("stopped", "early_stopped", "pruned")
        return max(last, round(planned_steps)) if is_known and math.isfinite(planned_steps) else last

    def cut_short(self, trial: Trial) -> bool:
        """Return True if the trial was pruned or stopped early, or was evaluated for less than 90 % of its planned steps. If the
        planned steps are unknown, the status `stopped` decides."""
        if trial.status in ("pruned", "early_stopped"):
            return True
        evaluated_steps = self.cost_curve(trial).steps
        own = trial.fact("max_train_steps")
        if math.isfinite(own) and own > 0 and len(evaluated_steps):
            return bool(evaluated_steps[-1] < 0.9 * own)
        return trial.status == "stopped"

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Cache of functions with the decorator `advisor.computed.computed`."""
        return {}

    @cached_property
    def costs(self) -> FloatArray:
        """Lowest cost of each trial, shape (trials,), or NaN for a trial without a finite cost."""
        best_costs = np.full(len(self.trials), np.nan)
        for trial in self.trials:
            finite_curve = self.cost_curve(trial).finite
            if len(finite_curve):
                best_costs[trial.index] = finite_curve.values.min()
        return best_costs

    @cached_property
    def ended(self) -> BoolArray:
        """Mask of the trials that ended and have data; only these count as evidence."""
        return np.array([t.status not in ("running", "no_data") for t in self.trials], dtype=np.bool_)

    @cached_property
    def feasible(self) -> BoolArray:
        """Mask of the trials with a finite objective that did not fail, including pruned trials."""
        is_feasible = np.array([t.status in _FEASIBLE_STATUSES for t in self.trials], dtype=np.bool_)
        return is_feasible & np.isfinite(self.costs)

    @cached_property
    def comparable(self) -> BoolArray:
        """Mask of the feasible trials with a result at full length: not pruned or stopped before 90 % of their planned steps.
        Without such a trial, all feasible trials."""
        has_full_result = self.feasible & np.array([not self._is_full_result_unknown(t) for t in self.trials], dtype=np.bool_)
        return has_full_result if has_full_result.any() else self.feasible

    def _is_full_result_unknown(self, trial: Trial) -> bool:
        steps = self.cost_curve(trial).steps
        is_stopped_early = trial.status == "stopped" and len(steps) > 0 and bool(steps[-1] < 0.9 * self.planned_steps(trial))
        return trial.status == "pruned" or is_stopped_early

    def ranked(self, trials: Sequence[Trial] | None = None) -> list[Trial]:
        """Return the comparable trials, or only those in `trials`, by `rank_key`, best first."""
        if trials is None:
            return list(self._ranked)
        indices = {t.index for t in trials}
        return [t for t in self._ranked if t.index in indices]

    @cached_property
    def _ranked(self) -> list[Trial]:
        comparable_trials = [t for t in self.trials if self.comparable[t.index]]
        return sorted(comparable_trials, key=self.rank_key)

    def rank_key(self, trial: Trial) -> tuple[float, float]:
        """Return the key by which trials are sorted: (best cost, mean cost in the second half of training); equal keys tie."""
        return round_to_result_digits(self.costs[trial.index]), round_to_result_digits(self.late_cost(trial))

    def late_cost(self, trial: Trial) -> float:
        """Return the mean cost over the second half of the trial's evaluations."""
        values = self.cost_curve(trial).finite.values
        return float(np.mean(values[len(values) // 2 :]))

    def objective_value(self, cost: float) -> float:
        return cost if self.minimize else -cost

    def positions(self, name: str, trials: Sequence[Trial] | None = None) -> FloatArray:
        """Return each trial's position in the range of a parameter: 0 at the low end, 1 at the high end, NaN if unknown."""
        chosen_trials = self.trials if trials is None else trials
        return self.spec.parameters[name].to_positions([t.params.get(name, "") for t in chosen_trials])
