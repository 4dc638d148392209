"""Detection of trials that overfit, and choice of regularisers that the next study should search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from scipy import stats

from advisor.computed import computed
from advisor.model import parameter_kinds
from advisor.model.change import AddParameter, SetRange
from advisor.model.message import Message, Name, listed, say
from advisor.model.space import as_number, hard_limits
from advisor.model.spec import Parameter
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import Rise, change_since, end_rise

Costs: TypeAlias = Callable[[Trial], Curve]

_TRAINING: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
_SURELY_RISES = 0.01


@dataclass(frozen=True, slots=True)
class Overfit:
    """The rise of a trial's validation curve at its end while its training metric falls."""

    trial: Trial
    curve: Curve
    """Finite validation costs of the trial."""
    rise: Rise
    p: float
    """p-value of a validation rise together with a training fall; 1 if the rise is immaterial or the training metric rises."""
    training: str | None = None
    """The training metric that falls after the best validation step, if one was logged."""

    @property
    def step(self) -> int:
        """Step at which the validation level is best."""
        return int(self.curve.steps[self.rise.best])


def read_overfits(
    study: Study, trials: Sequence[Trial], metric: str, costs: Costs, *, material: float
) -> list[Overfit]:
    """Apply `read_overfit` to each trial with enough evaluations of a validation metric, computed once for all rules."""
    readings = (_of_trial(study, trial, _Costs(metric, costs), material) for trial in trials)
    return [reading for reading in readings if reading is not None]


@dataclass(frozen=True)
class _Costs:
    metric: str
    of: Costs = field(compare=False)


@computed
def _of_trial(study: Study, trial: Trial, costs: _Costs, material: float) -> Overfit | None:
    return read_overfit(study, trial, costs.of(trial).finite, material=material)


def read_overfit(study: Study, trial: Trial, curve: Curve, *, material: float) -> Overfit | None:
    """Measure overfitting on a finite curve of validation costs; None if the curve has fewer than 6 points.

    material: minimum rise, as a share of the distance between the curve's highest and lowest level.
    """
    rise = end_rise(curve.values)
    if rise is None:
        return None
    if rise.height <= 0 or rise.share < material or rise.p > 0.5:
        return Overfit(trial, curve, rise, 1.0)
    p, training = _training_falls(study, trial, int(curve.steps[rise.best]))
    return Overfit(trial, curve, rise, max(p, rise.p), training)


def _training_falls(study: Study, trial: Trial, step: int) -> tuple[float, str | None]:
    """Return (p-value of a training fall since the step, metric); (1, metric) if a metric rises, (0, None) if none was logged."""
    signals = {study.signals[s]: s for s in reversed(_TRAINING) if s in study.signals}
    found: list[tuple[float, str]] = []
    for metric, signal in signals.items():
        curve = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            curve = -curve
        change = change_since(curve.values, int(np.searchsorted(curve.steps, step)))
        if change is not None and change.p_rise < _SURELY_RISES:
            return 1.0, metric
        if change is not None:
            found.append((change.p_fall, metric))
    if not found:
        return 0.0, None
    p, metric = min(found)
    return min(1.0, p * len(found)), metric


def beyond_chance(readings: Sequence[Overfit], level: float) -> list[Overfit]:
    """Return the trials that overfit at a joint significance level, with Benjamini-Hochberg corrected p-values."""
    if not readings:
        return []
    corrected = stats.false_discovery_control(np.array([r.p for r in readings]))
    return [replace(r, p=float(p)) for r, p in zip(readings, corrected, strict=True) if p <= level]


def validation_curves(study: Study) -> list[tuple[str, Costs]]:
    """Return (metric, function from trial to costs) of the objective and of the validation loss if that is another metric."""
    looks: list[tuple[str, Costs]] = [(study.spec.objective.metric, study.cost_curve)]
    loss = study.signals.get("valid_loss")
    if loss is not None and loss != study.spec.objective.metric:
        looks.append((loss, lambda trial: study.curve(trial, "valid_loss")))
    return looks


def setting_winners(study: Study, ranked: Sequence[Trial]) -> list[Trial]:
    """Return the best trial per setting of the categorical scientific parameters, best first; one trial without such parameters."""
    names = [n for n, p in study.searched.items() if p.role == "scientific" and not p.numeric]
    best: dict[tuple[object, ...], Trial] = {}
    for trial in ranked:
        best.setdefault(tuple(trial.params.get(n) for n in names), trial)
    return list(best.values())


# --- regularisers ---------------------------------------------------------------------------------------------------------------


def only_low_settings(study: Study, overfit: Sequence[Trial], feasible: Sequence[Trial]) -> bool:
    """Return True if a scientific regulariser has trials in the upper half of its range, and none of these trials overfits."""
    bad = {t.index for t in overfit}
    for name, parameter in study.searched.items():
        if parameter.role == "scientific" and parameter_kinds.is_regulariser(name):
            positions = study.positions(name, feasible)
            upper = {t.index for t, x in zip(feasible, positions, strict=True) if x > 0.5}
            if upper and not upper & bad:
                return True
    return False


def regulariser_changes(study: Study) -> Iterator[AddParameter | SetRange]:
    """Extend the ranges of searched regularisers upwards; add dropout and weight decay if no regulariser is searched."""
    why = "Trials overfit: validation gets worse while training improves. More regularisation may help."
    searched = [n for n in study.searched if parameter_kinds.is_regulariser(n)]
    widened = [c for name in searched if (c := _widened(study.spec.parameters[name], name, why)) is not None]
    yield from widened
    if not widened:
        for usual in (
            AddParameter(name="dropout", parameter=Parameter(type="float", low=0.0, high=0.5, why=why)),
            AddParameter(
                name="weight_decay", parameter=Parameter(type="float", low=1e-5, high=0.1, scale="log", why=why)
            ),
        ):
            known = [n for n in study.spec.parameters if usual.name in n.lower().replace("-", "_")]
            if not set(known) & set(searched):
                yield usual.model_copy(update={"name": known[0]}) if known else usual


def name_regularisers(changes: Sequence[AddParameter | SetRange]) -> Message:
    """Name the regularisers of `regulariser_changes`, as the object of "search"."""
    added = [Name(c.name) for c in changes if isinstance(c, AddParameter)]
    widened = [Name(c.parameter) for c in changes if isinstance(c, SetRange)]
    if widened:
        return say("higher values of {names}", names=listed(widened))
    return listed(added) if added else say("another regulariser")


def _widened(parameter: Parameter, name: str, why: str) -> SetRange | None:
    """Extend the range upwards by a decade (log scale) or by its own width (linear scale), within the hard limits."""
    numbers = [as_number(v) for v in parameter.options] if not parameter.numeric else [parameter.low, parameter.high]
    ends = [n for n in numbers if n is not None and np.isfinite(n)]
    if parameter.type == "bool" or len(ends) < max(2, len(numbers)):
        return None
    low, high = min(ends), max(ends)
    if parameter.scale == "reverse-log":
        return SetRange(parameter=name, low=low, high=1 - (1 - high) / 10, scale="reverse-log", why=why)
    log = parameter.scale == "log" or (not parameter.numeric and 0 < 10 * low <= high)
    wider = min(
        high * 10 if log else high + (high - low), 0.9 * hard_limits(name, parameter.type)[1], parameter.reach[1]
    )
    if not high < wider < np.inf:
        return None
    return SetRange(parameter=name, low=low, high=wider, scale="log" if log else "linear", why=why)
