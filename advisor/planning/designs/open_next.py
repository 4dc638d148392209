"""The design `open-next`: search another hyperparameter of the optimizer beside a learning rate that is known well enough.

Playbook: "How should Adam's hyperparameters be tuned?", "Identifying scientific, nuisance, and fixed hyperparameters".

*When.* Only a learning rate was searched, and the best rate is known to within a factor of `MAX_KNOWN_RATE_RATIO`, because
results are worse or training fails on both sides of this rate. If all tried rates give the same result within noise, the search
stops instead (`closing.stop_if_settled`).

*What.* A search of one more of the optimizer's hyperparameters, in its usual range, together with the learning rate around its
best value, because the two interact. All earlier trials must have the same value of the added hyperparameter. The new
learning-rate range covers the higher best rates for less momentum and the lower ones for more momentum."""

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
from advisor.planning.goals import domain_text
from advisor.planning.states import settings_needed

MAX_KNOWN_RATE_RATIO = 10.0
"""Maximum ratio of two learning rates at which the best rate between them counts as known. The two are the nearest rates above
and below the best rate that gave worse results or failed. Our choice."""
MAX_MOMENTUM_COMPLEMENT_RATIO = 10.0
"""Maximum ratio of (1 - momentum) at the low end of a new range to (1 - momentum) in the earlier trials. Our choice."""

_TREND_SIGNIFICANCE_LEVEL = 0.05
"""Significance level of the test whether results change monotonically with the learning rate. A comparison of all results
without regard to the rates can miss such a trend."""
_LEARNING_SIGNIFICANCE_LEVEL = 0.01
"""Maximum probability that a trial which learns nothing passes the test whether it learned."""


def search_next_hyperparameter(study: Study, spec: StudySpec) -> StudySpec | None:
    """Return a search of the learning rate and one more hyperparameter, which replaces `spec`, or None if the best rate is not
    known well enough or no further hyperparameter can be searched."""
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.scale == "log"]
    if len(spec.searched) != 1 or list(study.searched) != rates or study.spec.sampler.kind == "adaptive":
        return None
    tried_rates = [as_number(t.params.get(rates[0])) for t in study.trials if study.ended[t.index]]
    best_rate = as_number(study.ranked()[0].params.get(rates[0])) if study.ranked() else 0.0
    lower_rates, higher_rates = [r for r in tried_rates if 0 < r < best_rate], [r for r in tried_rates if r > best_rate]
    ratio = min(higher_rates) / max(lower_rates) if lower_rates and higher_rates else math.inf
    candidate = next(_searchable_hyperparameters(spec), None)
    if ratio > MAX_KNOWN_RATE_RATIO or candidate is None or equal_rates_reason(study, spec):
        return None
    name, rung = candidate
    old, fixed = spec.parameters[rates[0]], spec.parameters[name]
    best_text = f"the best {clean(rates[0])}, {plain_number(best_rate)}"
    known = f"{best_text}, is known to within a factor of {plain_number(ratio, 2)}"
    reason = f"the next hyperparameter to tune: {known}, and {clean(name)} was {setting(fixed.value)} in all trials"
    shift_text = "" if rung.name != "momentum" else f". Lower {clean(name)} needs a higher {clean(rates[0])}"
    value = as_number(fixed.value)
    least = round_significant(1 - MAX_MOMENTUM_COMPLEMENT_RATIO * (1 - value), 2) if rung.scale == "reverse-log" else -math.inf
    range_ends = {"low": max(min(rung.low, value), least), "high": max(rung.high, value)}
    new = Parameter(type="float", **range_ends, scale=rung.scale, limits=fixed.limits, why=reason + shift_text)
    if shift_text:
        low, high = (round_significant(best_rate * factor, 2) for factor in _rate_range_factors(new, value, ratio))
    else:
        low, high = _ends_at_worse_rates(study, rates[0], best_rate)
    why = f"around the best rate, {plain_number(best_rate)}; nearby rates are worse on both sides"
    low, high = max(low, old.declared_limits[0]), min(high, old.declared_limits[1])
    why += f"; the lower {clean(name)}, the higher the best rate" if shift_text else ""
    rate = old.model_copy(update={"low": low, "high": high, "why": why})
    update = {"goal": f"Tune {clean(name)}: {domain_text(new)}", "trials": max(TRIALS_FOR_RATE_ONLY, settings_needed(2))}
    return validate_spec(spec.with_parameter(rates[0], rate).with_parameter(name, new).model_copy(update=update))


def equal_rates_reason(study: Study, spec: StudySpec) -> str:
    """If all tried learning rates give the same result within noise, return a sentence that says so; else an empty text. If a
    prediction named one of these rates, the sentence says that the predicted rate is as good as any. The text is also empty
    unless both studies search only a learning rate."""
    rate = next(iter(spec.searched), "")
    if not is_learning_rate(rate) or len(spec.searched) != 1 or study.searched.keys() != spec.searched.keys():
        return ""
    ends = _equal_result_rate_range(study, rate)
    if ends is None:
        return ""
    low, high = (plain_number(end, 3) for end in ends)
    predictions = [p.expects for p in study.spec.predictions if isinstance(p.expects, BestNear)]
    predicted = [plain_number(p.value, 3) for p in predictions if p.parameter == rate and ends[0] <= p.value <= ends[1]]
    prediction_text = f", so the predicted {predicted[0]} is as good as any" if predicted else ""
    return f"All tried values of {clean(rate)}, {low} to {high}, give the same result within noise{prediction_text}."


def _ends_at_worse_rates(study: Study, name: str, best: float) -> tuple[float, float]:
    """Return the ends of the new learning-rate range. On each side, the end is the nearest rate at and beyond which all tried
    rates are worse by more than noise, but at most half a decade from the best rate."""
    low, high = (round_significant(best * factor, 2) for factor in (1 / HALF_DECADE, HALF_DECADE))
    is_worse = noise.is_worse_beyond_noise(study)
    rates = np.array([as_number(t.params.get(name)) for t in study.trials])
    good_rates = rates[study.comparable & ~is_worse]
    lower, higher = (rates[is_worse & (rates < good_rates.min())], rates[is_worse & (rates > good_rates.max())])
    low = max([low, *(round_outwards(float(r), "low") for r in lower)])
    return low, min([high, *(round_outwards(float(r), "high") for r in higher)])


def _rate_range_factors(momentum: Parameter, current: float, rate_ratio: float) -> tuple[float, float]:
    """Return (low end, high end) of the new learning-rate range if the momentum varies, as factors of the best learning rate.
    Each end is at least half a decade from the best rate.

    A step with momentum m is as long as a step without momentum at the learning rate lr / (1 - m), so the best learning rate is
    proportional to 1 - m. The best learning rate is known to within a factor of `rate_ratio`, so its true value lies at most the
    square root of `rate_ratio` above or below the estimate."""
    assert momentum.low is not None
    assert momentum.high is not None
    margin = math.sqrt(rate_ratio)
    low_factor, high_factor = ((1 - momentum.high) / (1 - current) / margin, (1 - momentum.low) / (1 - current) * margin)
    return min(1 / HALF_DECADE, low_factor), max(HALF_DECADE, high_factor)


def _equal_result_rate_range(study: Study, rate: str) -> tuple[float, float] | None:
    """Return (lowest, highest) of the tried learning rates if the results of all settings are equal within noise, although the
    best trial has learned and the rates differ by at least a factor of `MAX_KNOWN_RATE_RATIO`; else None."""
    trials = [t for t in study.ranked() if as_number(t.params.get(rate)) > 0]
    # If a rate failed, the results show no flat range, because the best rates may lie just below the failed one.
    if not trials or len(trials) != study.ended.sum() or not reason_settings_tie(study) or not _best_trial_has_learned(study):
        return None
    rates = np.array([as_number(t.params[rate]) for t in trials])
    if rates.max() < MAX_KNOWN_RATE_RATIO * rates.min():
        return None
    trend = linregress(np.log(rates), [study.costs[t.index] for t in trials])
    return None if trend.pvalue <= _TREND_SIGNIFICANCE_LEVEL else (float(rates.min()), float(rates.max()))


def _best_trial_has_learned(study: Study) -> bool:
    costs = study.cost_curve(study.ranked()[0]).finite.values
    later_costs = costs[len(costs) // 2 :]
    if len(later_costs) < 2:
        return False
    error = float(np.std(later_costs, ddof=1)) * math.sqrt(1 + 1 / len(later_costs))
    return bool(costs[0] - later_costs.mean() > error * special.stdtrit(len(later_costs) - 1, 1 - _LEARNING_SIGNIFICANCE_LEVEL))


def _searchable_hyperparameters(spec: StudySpec) -> Iterator[tuple[str, TunableHyperparameter]]:
    """Yield (name, usual range) of the fixed hyperparameters that a study with two searched hyperparameters can search. They
    belong to the optimizer in use or, if the optimizer is unknown, to any optimizer."""
    choices = [p.value for n, p in spec.parameters.items() if parameter_kinds.chooses_optimizer(n) and p.value is not None]
    in_use = next(filter(None, map(optimizers.optimizer_in_value, choices)), None)
    for ladder in dict.fromkeys(rungs[1:] for name, rungs in HYPERPARAMETERS_BY_OPTIMIZER.items() if in_use in (None, name)):
        for rung in (r for r in ladder if r.min_trials <= settings_needed(2)):
            for name, p in spec.parameters.items():
                is_same = any(optimizers.denotes_hyperparameter(rung.name, name, o) for o in HYPERPARAMETERS_BY_OPTIMIZER)
                if p.role == "fixed" and is_same and 0 < as_number(p.value) < 1:
                    yield name, rung
