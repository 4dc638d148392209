"""Detects trials that overfit, and chooses the regulariser that the next study should change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from scipy import stats

from advisor.computed import computed
from advisor.model import parameter_kinds
from advisor.model.change import AddParameter, Advise, SetRange
from advisor.model.message import Message, Name, Setting, list_message, say
from advisor.model.space import as_number, natural_limits_of_name, round_significant, words_of_name
from advisor.model.spec import Parameter
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import LevelRise, change_since, rise_at_end

CostCurveFunction: TypeAlias = Callable[[Trial], Curve]

TRAINING_SIGNALS: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
_MAX_P_TRAINING_RISES = 0.01
_MAX_P_OVERFITTING_GROWS = 0.01
_MAX_P_OVERFITTING_SHRINKS = 0.1
_MIN_TRIALS_PER_REGULARISER = 10
"""Minimum number of trials to call a regulariser useless because it does not reduce overfitting significantly."""
MIN_EVALUATIONS_TO_POOL = 3
"""Minimum number of evaluations of a trial to include it in the pooled test for a rise of the validation metric."""


@dataclass(frozen=True, slots=True)
class Overfit:
    """The rise of a trial's validation cost at its end, while its training metric falls."""

    trial: Trial
    curve: Curve
    """Finite validation costs."""
    rise: LevelRise
    p_value: float
    """p-value of the rise while the training metric falls; 1 if the rise is negligible or the training metric rises too."""
    falling_training_metric: str | None = None
    """Name of the training metric that falls after the best validation step; None if no training metric is logged."""

    @property
    def best_step(self) -> int:
        """Step at which the smoothed validation metric is best."""
        return int(self.curve.steps[self.rise.best_index])


def measure_overfitting_of_trials(
    study: Study, trials: Sequence[Trial], metric: str, costs: CostCurveFunction, *, material: float
) -> list[Overfit]:
    """Measure the overfitting of each trial with enough evaluations; cached, because several rules use it."""
    overfits = (_measure_trial_overfitting(study, trial, _Costs(metric, costs), material) for trial in trials)
    return [reading for reading in overfits if reading is not None]


@dataclass(frozen=True)
class _Costs:
    metric: str
    costs_of_trial: CostCurveFunction = field(compare=False)


@computed
def _measure_trial_overfitting(study: Study, trial: Trial, costs: _Costs, material: float) -> Overfit | None:
    return measure_overfitting(study, trial, costs.costs_of_trial(trial).finite, material=material)


def measure_overfitting(study: Study, trial: Trial, curve: Curve, *, material: float) -> Overfit | None:
    """Measure overfitting on a finite curve of validation costs; None for fewer than 6 points. material: minimum rise that
    counts, as a share of the distance between the curve's highest and lowest level."""
    rise = rise_at_end(curve.values)
    if rise is None:
        return None
    if rise.height <= 0 or rise.share < material or rise.p_value > 0.5:
        return Overfit(trial, curve, rise, 1.0)
    p, training = _p_value_of_training_fall(study, trial, int(curve.steps[rise.best_index]))
    return Overfit(trial, curve, rise, max(p, rise.p_value), training)


def _p_value_of_training_fall(study: Study, trial: Trial, step: int) -> tuple[float, str | None]:
    """Return (p-value, name) of the training metric that falls after `step`; (1, name) if one rises; (0, None) without any."""
    signal_by_metric = {study.signals[s]: s for s in reversed(TRAINING_SIGNALS) if s in study.signals}
    p_values_of_falls: list[tuple[float, str]] = []
    for metric, signal in signal_by_metric.items():
        curve = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            curve = -curve
        change = change_since(curve.values, int(np.searchsorted(curve.steps, step)))
        if change is not None and change.rise_p_value < _MAX_P_TRAINING_RISES:
            return 1.0, metric
        if change is not None:
            p_values_of_falls.append((change.fall_p_value, metric))
    if not p_values_of_falls:
        return 0.0, None
    p, metric = min(p_values_of_falls)
    return min(1.0, p * len(p_values_of_falls)), metric


def significant_overfits(overfits: Sequence[Overfit], level: float) -> list[Overfit]:
    """Return the trials that overfit at the significance level `level`, with Benjamini-Hochberg corrected p-values."""
    if not overfits:
        return []
    corrected_p_values = stats.false_discovery_control(np.array([r.p_value for r in overfits]))
    return [replace(r, p_value=float(p)) for r, p in zip(overfits, corrected_p_values, strict=True) if p <= level]


def validation_cost_functions(study: Study) -> list[tuple[str, CostCurveFunction]]:
    """Return (metric, function from a trial to its costs) for the objective and, if different, the validation loss."""
    metrics_and_functions: list[tuple[str, CostCurveFunction]] = [(study.spec.objective.metric, study.cost_curve)]
    loss_metric = study.signals.get("valid_loss")
    if loss_metric is not None and loss_metric != study.spec.objective.metric:
        metrics_and_functions.append((loss_metric, lambda trial: study.curve(trial, "valid_loss")))
    return metrics_and_functions


RegulariserChange: TypeAlias = AddParameter | SetRange | Advise

_STEPS_ADVICE = (
    "Choose the number of steps again: stronger regularisation usually needs more. If the best step is then one of "
    "the last ones, lengthen the training."
)
MAX_USUAL_DROPOUT = 0.4
"""Upper end of the usual range of dropout."""
_OVERFITTING_REASON = "Trials overfit: validation gets worse while training improves"
_DROPOUT_STRENGTHS = (0.0, 0.1, 0.3)
_WEIGHT_DECAY_STRENGTHS = (0.0, 0.01, 0.1)
_WEIGHT_DECAY_WORKLOADS = frozenset({"language-model", "diffusion"})
"""Workloads that rely on weight decay rather than dropout."""


def regulariser_changes(study: Study, costs: CostCurveFunction) -> Iterator[RegulariserChange]:
    """Yield a change of one regulariser, and advice to choose the number of steps again. costs: the validation metric that gets
    worse.

    If the range of dropout ends far below the usual values, search the usual values. Otherwise, of the regularisers that reduce
    overfitting, extend the range whose best value lies highest, if it lies in the upper half. If there is none, compare 0 and
    several strengths of a fixed regulariser, or else of dropout or weight decay.
    """
    names = [n for n in study.searched if parameter_kinds.is_regulariser(n) and not _is_useless_regulariser(study, costs, n)]
    best = study.ranked()[:1]
    best_position = {n: float(np.nan_to_num(study.positions(n, best))[0]) if best else 0.0 for n in names}
    highest_first = sorted(names, key=lambda n: -best_position[n])
    # Trials with weak dropout say nothing about the effect of stronger dropout.
    dropout_changes = (_propose_usual_dropout(study.spec.parameters[n], n) for n in study.searched)
    extensions = (_widen_range_upwards(study.spec.parameters[n], n) for n in highest_first if best_position[n] >= 0.5)
    changes = itertools.chain(dropout_changes, extensions)
    yield next((c for c in changes if c is not None), None) or _compare_strengths(study)
    yield Advise(text=_STEPS_ADVICE)


def _is_useless_regulariser(study: Study, costs: CostCurveFunction, name: str) -> bool:
    """Return True if overfitting, the rise of the validation metric after its best value, grows significantly with the
    regulariser's strength, or does not shrink significantly over many trials."""
    trials_and_costs = [(t, costs(t).finite.values) for t in study.ranked()]
    evaluated_trials = [(t, values) for t, values in trials_and_costs if len(values) >= MIN_EVALUATIONS_TO_POOL]
    positions = study.positions(name, [t for t, _ in evaluated_trials])
    is_known = np.isfinite(positions)
    positions, rises = positions[is_known], np.array([values[-1] - values.min() for _, values in evaluated_trials])[is_known]
    if min(len(np.unique(positions)), len(np.unique(rises))) < MIN_EVALUATIONS_TO_POOL:
        return False
    if stats.kendalltau(positions, rises, alternative="greater").pvalue <= _MAX_P_OVERFITTING_GROWS:
        return True
    does_overfitting_shrink = stats.kendalltau(positions, rises, alternative="less").pvalue <= _MAX_P_OVERFITTING_SHRINKS
    return len(positions) >= _MIN_TRIALS_PER_REGULARISER and not does_overfitting_shrink


def _compare_strengths(study: Study) -> AddParameter:
    """Compare several strengths, including 0, of a regulariser that the study does not search."""
    fixed = [(n, p.value) for n, p in study.spec.parameters.items() if not p.searched and parameter_kinds.is_regulariser(n)]
    numbers = [(n, float(v)) for n, v in fixed if isinstance(v, int | float) and not isinstance(v, bool)]
    usual_regularisers = ["weight_decay", "dropout"] if study.kind in _WEIGHT_DECAY_WORKLOADS else ["dropout", "weight_decay"]
    unused = (n for n in usual_regularisers if not any(_is_regulariser_kind(n, other) for other in study.spec.parameters))
    name, value = numbers[0] if numbers else (next(unused, "label_smoothing"), 0.0)
    strengths = _WEIGHT_DECAY_STRENGTHS if _is_regulariser_kind("weight_decay", name) else _DROPOUT_STRENGTHS
    # Dropout strengths are shares, so three times the present strength must stay below 1.
    compared_strengths = (0.0, value, 3 * value) if 0 < value < 0.3 else strengths
    why = f"{_OVERFITTING_REASON}. Compare {name} with a value of 0 (off) before you tune its strength"
    parameter = Parameter(role="scientific", type="float", choices=compared_strengths, why=why)
    return AddParameter(name=name, parameter=parameter)


def _is_regulariser_kind(usual: str, name: str) -> bool:
    name_words = set(words_of_name(name))
    if usual == "dropout":
        return any("drop" in word for word in name_words)
    return bool(name_words & {"wd", "weightdecay", "l2"}) or {"weight", "decay"} <= name_words


def regulariser_phrase(changes: Sequence[RegulariserChange]) -> Message:
    """Return a phrase that names the change of the regulariser, to follow the verb "search"."""
    for change in changes:
        if isinstance(change, SetRange):
            return say("higher values of {name}", name=Name(change.parameter))
        if isinstance(change, AddParameter):
            strengths_text = list_message([Setting(v) for v in change.parameter.options], limit=4)
            return say("{name} at {values}", name=Name(change.name), values=strengths_text)
    return say("another regulariser")


def _propose_usual_dropout(parameter: Parameter, name: str) -> SetRange | None:
    """Return a change to the usual range of dropout if the searched range ends far below it; None for other regularisers."""
    lowest, highest = parameter.declared_limits
    if parameter.high is None or not parameter.numeric or "dropout" not in words_of_name(name):
        return None
    if parameter.high >= MAX_USUAL_DROPOUT / 2 or highest < MAX_USUAL_DROPOUT:
        return None
    why = f"{_OVERFITTING_REASON}. No trial had more than {parameter.high:.2g}; the usual values go up to {MAX_USUAL_DROPOUT:g}"
    return SetRange(parameter=name, low=max(0.0, lowest), high=MAX_USUAL_DROPOUT, scale="linear", why=why)


def _widen_range_upwards(parameter: Parameter, name: str) -> SetRange | None:
    """Return a change that extends the range by a decade on a log scale, by its width on a linear scale."""
    why = f"{_OVERFITTING_REASON}. Higher values may help"
    known_values = [as_number(v) for v in parameter.options] if not parameter.numeric else [parameter.low, parameter.high]
    finite_values = [n for n in known_values if n is not None and np.isfinite(n)]
    if parameter.type == "bool" or len(finite_values) < max(2, len(known_values)):
        return None
    low, high = min(finite_values), max(finite_values)
    if parameter.scale == "reverse-log":
        return SetRange(parameter=name, low=low, high=1 - (1 - high) / 10, scale="reverse-log", why=why)
    log = parameter.scale == "log" or (not parameter.numeric and 0 < 10 * low <= high)
    widened_high = round_significant(high * 10 if log else high + (high - low), 2)
    new_high = min(widened_high, 0.9 * natural_limits_of_name(name, parameter.type)[1], parameter.declared_limits[1])
    if not high < new_high < np.inf:
        return None
    negligible_strength = 0.01 * high if log else 0.0
    if low > negligible_strength:
        low = max(negligible_strength, parameter.declared_limits[0])
        why += ". The new range starts at almost no regularisation"
    return SetRange(parameter=name, low=low, high=new_high, scale="log" if log else "linear", why=why)
