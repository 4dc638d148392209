"""The design `open-next`: search another hyperparameter of the optimizer beside a learning rate that is known well enough.

Playbook: "How should Adam's hyperparameters be tuned?", "Identifying scientific, nuisance, and fixed hyperparameters".

*When.* Only a learning rate was searched, and the best rate is known to within a factor of `MAX_KNOWN_RATE_RATIO`, because
results are worse or training fails on both sides of this rate. A further study of the learning rate alone would only narrow its
range or add trials. If all rates in a range at least that wide give the same result within noise, a search of one more
hyperparameter would show no difference either, so the search stops (`closing.stop_if_settled`).

*What.* A search of one more of the optimizer's hyperparameters, in its usual range, together with the learning rate around its
best value, because the two interact. All earlier trials must have the same value of the added hyperparameter. With less
momentum, the best learning rate is higher; with more momentum, it is lower. The new learning-rate range covers the best
learning rates for less and for more momentum. If no further hyperparameter can be searched, this design plans no study."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import special
from scipy.stats import linregress

from advisor.computed.curves import noise
from advisor.computed.pipeline.ties import reason_settings_tie
from advisor.model import optimizers, parameter_kinds
from advisor.model.optimizers import HYPERPARAMETERS_BY_OPTIMIZER, TRIALS_FOR_RATE_ONLY, TunableHyperparameter
from advisor.model.prediction import BestNear, round_significant
from advisor.model.space import as_number, is_learning_rate, round_outwards
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import clean, plain_number, setting
from advisor.planning.base import validate_spec
from advisor.planning.goals import domain
from advisor.planning.states import settings_needed

MAX_KNOWN_RATE_RATIO = 10.0
"""Maximum ratio at which the best learning rate counts as known: the ratio between the nearest worse or failed learning rate
above the best one and the nearest such rate below it. Our choice."""
DECADE = 10.0
"""For a new range of momentum or beta1: maximum ratio of 1 - value at the low end of the range to 1 - value in the earlier
trials. Our choice."""

_TREND_SIGNIFICANCE_LEVEL = 0.05
"""Significance level of the test for a trend between learning rate and result; a comparison of all results can miss such a
trend."""
_LEARNING_SIGNIFICANCE_LEVEL = 0.01
"""Maximum probability with which a trial that learns nothing passes the test for learning."""


def search_next_hyperparameter(study: Study, spec: StudySpec) -> StudySpec | None:
    """Return a search of the learning rate and one more hyperparameter, to run instead of `spec`; None if there is no further
    hyperparameter to search."""
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.scale == "log"]
    if len(spec.searched) != 1 or list(study.searched) != rates or study.spec.sampler.kind == "adaptive":
        return None
    tried = [as_number(t.params.get(rates[0])) for t in study.trials if study.ended[t.index]]
    best = as_number(study.ranked()[0].params.get(rates[0])) if study.ranked() else 0.0
    below, above = [r for r in tried if 0 < r < best], [r for r in tried if r > best]
    within = min(above) / max(below) if below and above else math.inf
    found = next(_candidates(spec), None)
    if within > MAX_KNOWN_RATE_RATIO or found is None or equal_rates_reason(study, spec):
        return None
    name, rung = found
    old, fixed = spec.parameters[rates[0]], spec.parameters[name]
    known = f"the best {clean(rates[0])}, {plain_number(best)}, is known to within a factor of {plain_number(within, 2)}"
    reason = f"the next hyperparameter to tune: {known}, and {clean(name)} was {setting(fixed.value)} in all trials"
    shifts = "" if rung.name != "momentum" else f". Lower {clean(name)} needs a higher {clean(rates[0])}"
    now = as_number(fixed.value)
    least = round_significant(1 - DECADE * (1 - now), 2) if rung.scale == "reverse-log" else -math.inf
    ends = {"low": max(min(rung.low, now), least), "high": max(rung.high, now)}
    new = Parameter(type="float", **ends, scale=rung.scale, limits=fixed.limits, why=reason + shifts)
    if shifts:
        low, high = (round_significant(best * factor, 2) for factor in _rate_range_factors(new, now, within))
    else:
        low, high = _ends_at_worse_rates(study, rates[0], best)
    why = f"around the best rate, {plain_number(best)}; nearby rates are worse on both sides"
    low, high = max(low, old.declared_limits[0]), min(high, old.declared_limits[1])
    why += f"; the lower {clean(name)}, the higher the best rate" if shifts else ""
    rate = old.model_copy(update={"low": low, "high": high, "why": why})
    update = {"goal": f"Tune {clean(name)}: {domain(new)}", "trials": max(TRIALS_FOR_RATE_ONLY, settings_needed(2))}
    return validate_spec(spec.with_parameter(rates[0], rate).with_parameter(name, new).model_copy(update=update))


def equal_rates_reason(study: Study, spec: StudySpec) -> str:
    """Return a sentence that says that all tried learning rates give the same result within noise, and that names a predicted
    rate among them; empty if the results differ, or if `study` or `spec` searches more than one learning rate."""
    rate = next(iter(spec.searched), "")
    if not is_learning_rate(rate) or len(spec.searched) != 1 or study.searched.keys() != spec.searched.keys():
        return ""
    equal = _equal_result_rate_range(study, rate)
    if equal is None:
        return ""
    low, high = (plain_number(end, 3) for end in equal)
    expected = [
        plain_number(p.expects.value, 3)
        for p in study.spec.predictions
        if isinstance(p.expects, BestNear) and p.expects.parameter == rate and equal[0] <= p.expects.value <= equal[1]
    ]
    predicted = f", so the predicted {expected[0]} is as good as any" if expected else ""
    return f"All tried values of {clean(rate)}, {low} to {high}, give the same result within noise{predicted}."


def _ends_at_worse_rates(study: Study, name: str, best: float) -> tuple[float, float]:
    """Return the ends of the new learning-rate range: the nearest rates on both sides of the best one that are worse beyond
    noise, as all rates further out are; at most half a decade away."""
    low, high = (round_significant(best * factor, 2) for factor in (1 / HALF_DECADE, HALF_DECADE))
    is_worse = noise.is_worse_beyond_noise(study)
    rates = np.array([as_number(t.params.get(name)) for t in study.trials])
    good = rates[study.comparable & ~is_worse]
    below, above = rates[is_worse & (rates < good.min())], rates[is_worse & (rates > good.max())]
    low = max([low, *(round_outwards(float(r), "low") for r in below)])
    return low, min([high, *(round_outwards(float(r), "high") for r in above)])


def _rate_range_factors(new: Parameter, now: float, within: float) -> tuple[float, float]:
    """Return the ratios of the ends of the new learning-rate range to the best learning rate if the momentum varies; each end
    is at least half a decade away.

    A step with momentum m is as long as a step without momentum at the learning rate lr / (1 - m), so the best learning rate is
    proportional to 1 - m. The best learning rate is known to within a factor of `within`, so its true value lies at most the
    square root of `within` above or below the estimate."""
    assert new.low is not None
    assert new.high is not None
    room = math.sqrt(within)
    least, most = (1 - new.high) / (1 - now) / room, (1 - new.low) / (1 - now) * room
    return min(1 / HALF_DECADE, least), max(HALF_DECADE, most)


def _equal_result_rate_range(study: Study, rate: str) -> tuple[float, float] | None:
    """Return the lowest and the highest learning rate if the results of all settings tie although the best trial has learned,
    and the rates differ by at least a factor of `MAX_KNOWN_RATE_RATIO`; else None."""
    trials = [t for t in study.ranked() if as_number(t.params.get(rate)) > 0]
    # If a learning rate failed, the results show no flat range, because the best learning rates may lie just below the failed
    # one.
    if (
        not trials
        or len(trials) != sum(bool(e) for e in study.ended)
        or not reason_settings_tie(study)
        or not _best_trial_has_learned(study)
    ):
        return None
    rates = np.array([as_number(t.params[rate]) for t in trials])
    if rates.max() < MAX_KNOWN_RATE_RATIO * rates.min():
        return None
    trend = linregress(np.log(rates), [study.costs[t.index] for t in trials])
    return None if trend.pvalue <= _TREND_SIGNIFICANCE_LEVEL else (float(rates.min()), float(rates.max()))


def _best_trial_has_learned(study: Study) -> bool:
    costs = study.cost_curve(study.ranked()[0]).finite.values
    later = costs[len(costs) // 2 :]
    if len(later) < 2:
        return False
    error = float(np.std(later, ddof=1)) * math.sqrt(1 + 1 / len(later))
    return bool(costs[0] - later.mean() > error * special.stdtrit(len(later) - 1, 1 - _LEARNING_SIGNIFICANCE_LEVEL))


def _candidates(spec: StudySpec) -> Iterator[tuple[str, TunableHyperparameter]]:
    """Yield (name, rung) of the fixed hyperparameters that a study of this size can search: hyperparameters of the optimizer in
    use or, if the optimizer is unknown, of any optimizer."""
    choosers = [p.value for n, p in spec.parameters.items() if parameter_kinds.chooses_optimizer(n) and p.value is not None]
    own = next(filter(None, map(optimizers.optimizer_in_value, choosers)), None)
    for ladder in dict.fromkeys(rungs[1:] for name, rungs in HYPERPARAMETERS_BY_OPTIMIZER.items() if own in (None, name)):
        for rung in (r for r in ladder if r.min_trials <= settings_needed(2)):
            for name, p in spec.parameters.items():
                denoted = any(
                    optimizers.denotes_hyperparameter(rung.name, name, optimizer) for optimizer in HYPERPARAMETERS_BY_OPTIMIZER
                )
                if p.role == "fixed" and denoted and 0 < as_number(p.value) < 1:
                    yield name, rung
