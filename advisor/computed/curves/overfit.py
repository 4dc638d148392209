"""Detects trials that overfit, and chooses the regulariser that the next study should change."""

from __future__ import annotations

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

_TRAINING_SIGNALS: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
_MAX_P_TRAINING_RISES = 0.01
_MAX_P_TRAINING_FALLS = 0.05
_MAX_P_VALIDATION_RISES = 0.05
_MAX_P_OVERFITTING_GROWS = 0.01
_MAX_P_OVERFITTING_SHRINKS = 0.1
_MIN_TRIALS_PER_REGULARISER = 10
"""With at least this many trials, a regulariser counts as useless unless it reduces overfitting significantly."""
MIN_EVALUATIONS_TO_POOL = 3
"""Minimum number of evaluations of a trial to include it in the pooled test for a rise of the validation metric."""
_MAX_COMPARED_POINTS = 10
"""Maximum number of points of training at which the validation metric is compared with its value at the end."""


@dataclass(frozen=True, slots=True)
class Overfit:
    """The rise of a trial's validation cost at its end, while its training metric falls."""

    trial: Trial
    curve: Curve
    """Finite validation costs of the trial."""
    rise: LevelRise
    p_value: float
    """p-value of a rise of the validation cost while the training metric falls; 1 if the rise is negligible or the training
    metric rises."""
    falling_training_metric: str | None = None
    """The training metric that falls after the best validation step, if one was logged."""

    @property
    def best_step(self) -> int:
        """Step at which the smoothed validation metric is best."""
        return int(self.curve.steps[self.rise.best_index])


def measure_overfitting_of_trials(
    study: Study, trials: Sequence[Trial], metric: str, costs: CostCurveFunction, *, material: float
) -> list[Overfit]:
    """Measure the overfitting of each trial that has enough evaluations of a validation metric. The measurements are cached,
    because several rules use them."""
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
    """Measure overfitting on a finite curve of validation costs; None if the curve has fewer than 6 points.

    material: minimum rise that counts, as a share of the distance between the curve's highest and lowest level.
    """
    rise = rise_at_end(curve.values)
    if rise is None:
        return None
    if rise.height <= 0 or rise.share < material or rise.p_value > 0.5:
        return Overfit(trial, curve, rise, 1.0)
    p, training = _p_value_of_training_fall(study, trial, int(curve.steps[rise.best_index]))
    return Overfit(trial, curve, rise, max(p, rise.p_value), training)


def _p_value_of_training_fall(study: Study, trial: Trial, step: int) -> tuple[float, str | None]:
    """Return (p-value, name) of the training metric that falls after `step`; (1, name) if a metric rises; (0, None) if none was
    logged."""
    signals = {study.signals[s]: s for s in reversed(_TRAINING_SIGNALS) if s in study.signals}
    falls: list[tuple[float, str]] = []
    for metric, signal in signals.items():
        curve = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            curve = -curve
        change = change_since(curve.values, int(np.searchsorted(curve.steps, step)))
        if change is not None and change.p_rise < _MAX_P_TRAINING_RISES:
            return 1.0, metric
        if change is not None:
            falls.append((change.p_fall, metric))
    if not falls:
        return 0.0, None
    p, metric = min(falls)
    return min(1.0, p * len(falls)), metric


def significant_overfits(overfits: Sequence[Overfit], level: float) -> list[Overfit]:
    """Return the trials that overfit at the significance level `level`, with Benjamini-Hochberg corrected p-values."""
    if not overfits:
        return []
    corrected = stats.false_discovery_control(np.array([r.p_value for r in overfits]))
    return [replace(r, p_value=float(p)) for r, p in zip(overfits, corrected, strict=True) if p <= level]


# --- many trials with few evaluations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PooledRise:
    """The rise of a validation metric from one earlier point of training to the end, tested over all trials of a study."""

    rising_trials: tuple[Trial, ...]
    """Trials whose validation metric is worse at the end than at the earlier point, best trial first."""
    judged_count: int
    """Number of trials with enough evaluations whose validation metric at the earlier point differs from that at the end."""
    best_position: float
    """Median position of the earlier point, as a share of the training length, over the trials that get worse."""
    height: float
    """Median rise of the validation metric over the trials that get worse, in the metric's unit."""
    share: float
    """Median rise as a share of the range of the trial's curve, over the trials that get worse."""
    p_value: float
    """p-value of a sign test over all judged trials, corrected for choosing the earlier point; 1 if a training metric also
    rises."""
    lowest_possible_p: float
    """Smallest p-value that the sign test can reach: its p-value if the metric rises in all judged trials."""
    falling_training_metric: str | None
    """The training metric that falls while the validation metric rises, if one was logged."""


def pooled_rise(study: Study, trials: Sequence[Trial], costs: CostCurveFunction) -> PooledRise | None:
    """Test whether the validation metric of most trials is worse at the end than at one earlier point of training (sign test).

    If the true metric does not change after the earlier point, a trial ends higher or lower with equal probability, whatever
    the noise. If there are many trials, the sign test therefore needs only three evaluations per trial. Return None if no trial
    has three evaluations, or if the metric rises in no trial.
    """
    curves = [(t, c) for t in trials if len(c := costs(t).finite) >= MIN_EVALUATIONS_TO_POOL]
    if not curves:
        return None
    indices = np.array([(np.arange(_MAX_COMPARED_POINTS) / _MAX_COMPARED_POINTS * (len(c) - 1)).astype(int) for _, c in curves])
    moves = np.array([c.values[-1] - c.values[i] for (_, c), i in zip(curves, indices, strict=True)])
    rising_counts, judged = (moves > 0).sum(axis=0), (moves != 0).sum(axis=0)
    distinct_points = len({tuple(column) for column in indices.T})
    chances = distinct_points * stats.binom.sf(rising_counts - 1, np.maximum(judged, 1), 0.5)
    # If several points show a significant rise, report the one with the best metric value, because overfitting begins there.
    shown = chances <= max(_MAX_P_VALIDATION_RISES, chances.min())
    point = int(np.argmax(np.where(shown, np.median(moves, axis=0), -np.inf)))
    rising = [(*curves[i], int(indices[i, point])) for i in range(len(curves)) if moves[i, point] > 0]
    if not rising:
        return None
    falls, training = _pooled_training_change(study, [(t, int(c.steps[i])) for t, c, i in rising])
    heights = np.array([c.values[-1] - c.values[i] for _, c, i in rising])
    return PooledRise(
        rising_trials=tuple(t for t, _, _ in rising),
        judged_count=int(judged[point]),
        best_position=float(np.median([c.steps[i] / c.steps[-1] for _, c, i in rising])),
        height=float(np.median(heights)),
        share=float(np.median(heights / [np.ptp(c.values) for _, c, _ in rising])),
        p_value=min(1.0, float(chances.min())) if falls else 1.0,
        lowest_possible_p=min(1.0, distinct_points * 0.5 ** float(judged.max())),
        falling_training_metric=training,
    )


def _pooled_training_change(study: Study, starts: Sequence[tuple[Trial, int]]) -> tuple[bool, str | None]:
    """Return (False if a training metric rises in half of the trials, else True; name of the training metric that falls in most
    trials)."""
    falling: str | None = None
    for signal in (s for s in _TRAINING_SIGNALS if s in study.signals):
        moves = np.array([m for t, step in starts if not np.isnan(m := _training_change(study, t, signal, step))])
        if not len(moves):
            continue
        if 2 * int((moves > 0).sum()) >= len(moves):
            return False, None
        if falling is None and float(stats.binom.sf((moves < 0).sum() - 1, len(moves), 0.5)) <= _MAX_P_TRAINING_FALLS:
            falling = study.signals[signal]
    return True, falling


def _training_change(study: Study, trial: Trial, signal: Signal, step: int) -> float:
    """Return the change of a training cost from its level around `step` to its level at the end; NaN if there are too few
    points."""
    curve = study.curve(trial, signal).finite
    if signal == "train_objective" and not study.minimize:
        curve = -curve
    width = max(1, len(curve) // 10)
    index = int(np.searchsorted(curve.steps, step))
    if len(curve) < 2 or index + width > len(curve) - width:
        return float("nan")
    return float(np.mean(curve.values[-width:]) - np.mean(curve.values[index : index + width]))


# --- metrics and settings ---------------------------------------------------------------------------------------------------------


def validation_cost_functions(study: Study) -> list[tuple[str, CostCurveFunction]]:
    """Return (metric, function from a trial to its costs) for the objective and, if it is another metric, for the validation
    loss."""
    curves: list[tuple[str, CostCurveFunction]] = [(study.spec.objective.metric, study.cost_curve)]
    loss = study.signals.get("valid_loss")
    if loss is not None and loss != study.spec.objective.metric:
        curves.append((loss, lambda trial: study.curve(trial, "valid_loss")))
    return curves


def best_trial_per_combination(study: Study, ranked: Sequence[Trial]) -> list[Trial]:
    """Return the best trial for each combination of the compared categorical hyperparameters, best first; only the best trial
    if there are none."""
    names = [n for n, p in study.searched.items() if p.role == "scientific" and not p.numeric]
    best: dict[tuple[object, ...], Trial] = {}
    for trial in ranked:
        best.setdefault(tuple(trial.params.get(n) for n in names), trial)
    return list(best.values())


# --- regularisers ---------------------------------------------------------------------------------------------------------------


def do_only_weak_settings_overfit(study: Study, overfit: Sequence[Trial], feasible: Sequence[Trial]) -> bool:
    """Return True if the study compares a regulariser, tried it in the upper half of its range, and no trial there overfits."""
    bad = {t.index for t in overfit}
    for name, parameter in study.searched.items():
        if parameter.role == "scientific" and parameter_kinds.is_regulariser(name):
            positions = study.positions(name, feasible)
            upper = {t.index for t, x in zip(feasible, positions, strict=True) if x > 0.5}
            if upper and not upper & bad:
                return True
    return False


RegulariserChange: TypeAlias = AddParameter | SetRange | Advise

_STEPS_ADVICE = (
    "Choose the number of steps again: stronger regularisation usually needs more. If the best step is then one of "
    "the last ones, lengthen the training."
)
MAX_USUAL_DROPOUT = 0.4
"""Upper end of the range in which dropout is usually searched."""
_OVERFITTING_REASON = "Trials overfit: validation gets worse while training improves"
_DROPOUT_STRENGTHS = (0.0, 0.1, 0.3)
_WEIGHT_DECAY_STRENGTHS = (0.0, 0.01, 0.1)
_WEIGHT_DECAY_WORKLOADS = frozenset({"language-model", "diffusion"})
"""Kinds of workload that usually rely on weight decay rather than on dropout."""


def regulariser_changes(study: Study, costs: CostCurveFunction) -> Iterator[RegulariserChange]:
    """Yield a change of one regulariser, and advice to choose the number of steps again. costs: the validation metric that gets
    worse.

    If dropout was only searched far below its usual strength, search its usual range. Otherwise, extend the range of the
    regulariser whose best value lies closest to the upper end of its searched range. Skip a regulariser that does not reduce
    overfitting, or whose best value lies in the lower half of its searched range. If no regulariser remains, compare 0 and
    several strengths of a fixed regulariser, or else of dropout or weight decay.
    """
    names = [n for n in study.searched if parameter_kinds.is_regulariser(n) and not _is_useless_regulariser(study, costs, n)]
    best = study.ranked()[:1]
    height = {n: float(np.nan_to_num(study.positions(n, best))[0]) if best else 0.0 for n in names}
    ordered = sorted(names, key=lambda n: -height[n])
    # Trials with weak dropout say nothing about the effect of stronger dropout.
    weak = (_propose_usual_dropout(study.spec.parameters[n], n) for n in study.searched)
    if (change := next((c for c in weak if c is not None), None)) is not None:
        yield change
        yield Advise(text=_STEPS_ADVICE)
        return
    widened = (_widen_range_upwards(study.spec.parameters[n], n) for n in ordered if height[n] >= 0.5)
    yield next((c for c in widened if c is not None), None) or _compare_strengths(study)
    yield Advise(text=_STEPS_ADVICE)


def _is_useless_regulariser(study: Study, costs: CostCurveFunction, name: str) -> bool:
    """Return True if overfitting grows significantly with the regulariser's strength, or does not shrink significantly over
    many trials.

    The overfitting of a trial is measured as the rise of its validation metric after the metric's best value.
    """
    curves = [(t, costs(t).finite.values) for t in study.ranked()]
    measured = [(t, values) for t, values in curves if len(values) >= MIN_EVALUATIONS_TO_POOL]
    positions = study.positions(name, [t for t, _ in measured])
    rises = np.array([values[-1] - values.min() for _, values in measured])
    is_known = np.isfinite(positions)
    if (
        len(set(positions[is_known].tolist())) < MIN_EVALUATIONS_TO_POOL
        or len(set(rises[is_known].tolist())) < MIN_EVALUATIONS_TO_POOL
    ):
        return False
    if stats.kendalltau(positions[is_known], rises[is_known], alternative="greater").pvalue <= _MAX_P_OVERFITTING_GROWS:
        return True
    shrinks = (
        float(stats.kendalltau(positions[is_known], rises[is_known], alternative="less").pvalue) <= _MAX_P_OVERFITTING_SHRINKS
    )
    return is_known.sum() >= _MIN_TRIALS_PER_REGULARISER and not shrinks


def _compare_strengths(study: Study) -> AddParameter:
    """Compare several strengths, including 0, of a regulariser that the study does not search."""
    fixed = [
        (n, as_number(p.value))
        for n, p in study.spec.parameters.items()
        if not p.searched and parameter_kinds.is_regulariser(n) and _is_number(p.value)
    ]
    candidates = ["weight_decay", "dropout"] if study.kind in _WEIGHT_DECAY_WORKLOADS else ["dropout", "weight_decay"]
    new = next(
        (n for n in candidates if not any(_is_regulariser_kind(n, other) for other in study.spec.parameters)), "label_smoothing"
    )
    name, value = fixed[0] if fixed else (new, 0.0)
    strengths = _WEIGHT_DECAY_STRENGTHS if _is_regulariser_kind("weight_decay", name) else _DROPOUT_STRENGTHS
    # Dropout strengths are shares, so three times the present strength must stay below 1.
    values = (0.0, value, 3 * value) if 0 < value < 0.3 else strengths
    why = f"{_OVERFITTING_REASON}. Compare {name} with a value of 0 (off) before you tune its strength"
    parameter = Parameter(role="scientific", type="float", choices=values, why=why)
    return AddParameter(name=name, parameter=parameter)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_regulariser_kind(usual: str, name: str) -> bool:
    """Return True if the name denotes the regulariser `usual`: dropout or weight decay."""
    words = set(words_of_name(name))
    if usual == "dropout":
        return any("drop" in word for word in words)
    return bool(words & {"wd", "weightdecay", "l2"}) or {"weight", "decay"} <= words


def regulariser_phrase(changes: Sequence[RegulariserChange]) -> Message:
    """Return a phrase that names the change of the regulariser, to follow the verb "search"."""
    for change in changes:
        if isinstance(change, SetRange):
            return say("higher values of {name}", name=Name(change.parameter))
        if isinstance(change, AddParameter):
            values = list_message([Setting(v) for v in change.parameter.options], limit=4)
            return say("{name} at {values}", name=Name(change.name), values=values)
    return say("another regulariser")


def _propose_usual_dropout(parameter: Parameter, name: str) -> SetRange | None:
    """Return a change to dropout's usual range if the searched range ends far below it; None for other regularisers."""
    high = parameter.high if parameter.numeric else None
    if (
        high is None
        or "dropout" not in words_of_name(name)
        or not high < MAX_USUAL_DROPOUT / 2
        or parameter.declared_limits[1] < MAX_USUAL_DROPOUT
    ):
        return None
    why = f"{_OVERFITTING_REASON}. No trial had more than {high:.2g}; the usual values go up to {MAX_USUAL_DROPOUT:g}"
    return SetRange(parameter=name, low=max(0.0, parameter.declared_limits[0]), high=MAX_USUAL_DROPOUT, scale="linear", why=why)


def _widen_range_upwards(parameter: Parameter, name: str) -> SetRange | None:
    """Return a change that extends the range upwards: by a decade on a log scale, by the range's width on a linear scale."""
    why = f"{_OVERFITTING_REASON}. Higher values may help"
    numbers = [as_number(v) for v in parameter.options] if not parameter.numeric else [parameter.low, parameter.high]
    ends = [n for n in numbers if n is not None and np.isfinite(n)]
    if parameter.type == "bool" or len(ends) < max(2, len(numbers)):
        return None
    low, high = min(ends), max(ends)
    if parameter.scale == "reverse-log":
        return SetRange(parameter=name, low=low, high=1 - (1 - high) / 10, scale="reverse-log", why=why)
    log = parameter.scale == "log" or (not parameter.numeric and 0 < 10 * low <= high)
    wider = min(
        round_significant(high * 10 if log else high + (high - low), 2),
        0.9 * natural_limits_of_name(name, parameter.type)[1],
        parameter.declared_limits[1],
    )
    if not high < wider < np.inf:
        return None
    almost_none = 0.01 * high if log else 0.0
    if low > almost_none:
        low, why = (max(almost_none, parameter.declared_limits[0]), f"{why}. The new range starts at almost no regularisation")
    return SetRange(parameter=name, low=low, high=wider, scale="log" if log else "linear", why=why)
