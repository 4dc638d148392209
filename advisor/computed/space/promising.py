"""Uses a model of all hyperparameters to find the part of each range in which the best setting of the next study probably lies.

A Gaussian process (module `surface`) is fitted to the costs of all settings; a failed one gets the worst cost. Each posterior
draw selects the best of many candidate points in the next study's space. The new range contains the middle 90 % of these, the
best settings so far, and a margin at each end. It does not extend beyond the outermost trials, unless the optimum probably lies
there or the best trial is the outermost one. If many trials were pruned, no model is fitted: they compare only at an early
step, where settings that learn fast at first look best. `benchmarks/quality/ranges.py` counts how often a new range leaves out
settings that are better by more than noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from advisor.computed import computed
from advisor.computed.space import settings
from advisor.computed.space.inside import meets_condition, trials_in_space
from advisor.model import parameter_kinds
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, HyperparameterValue, is_training_length
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.stats import importance, ranks
from advisor.stats.surface import ResponseSurface, compress_costs
from advisor.stats.widening import range_of_span

MIN_TRIALS_WITH_RESULT = 5
WITHIN = 0.9
"""Probability that the best setting lies inside all new ranges, before these are limited to tried values."""
LIES_HERE_REASON = f"the best value lies here with a probability of about {100 * WITHIN:.0f} %, by a model"
MAX_CHANCE_BEYOND_TRIALS = 0.25
"""Maximum probability that the best setting lies beyond the outermost trial for a range to end there. Our choice."""
RANGE_MARGIN = (0.25, 0.1)
"""Margin on each side of a new range: in decades on a log scale, as a share of the old range on a linear scale. Our choice."""
RANGE_MARGIN_AFTER_CHANGE = (0.5, 0.25)
"""Margin on each side of a new range if the next study trains differently, because the best values may then move."""
NUMBER_OF_BEST_TRIALS = 2
"""Number of best trials that a new range must contain."""
MIN_RANGE_CUT_SHARE = 0.1
"""Minimum share of a range that a cut at one end must remove. Our choice."""
SIGNIFICANCE_LEVEL = 0.05
"""Without an effect of any hyperparameter, no model is fitted."""
MAX_FITTED_TRIALS = 150
"""Maximum number of trials to fit, evenly spaced in rank; the time grows with its cube."""
MAX_HYPERPARAMETERS = 20
"""With more hyperparameters, the trials of a study hardly rule out any value."""
MAX_SCIENTIFIC_COMBINATIONS = 9
"""Maximum number of combinations of scientific values; a new range must contain good settings for each combination."""
RANDOM_SEED = 0
_NUMBER_OF_UNIFORM_POINTS = 300
"""Number of random candidates from the whole search space."""
_POINTS_PER_PERTURBED_TRIAL = 40
"""Number of random candidates near each of the best trials."""
_NUMBER_OF_PERTURBED_TRIALS = 5
_PERTURBATION_SCALES = (0.3, 0.1)
"""Standard deviations of distances from the best trials, in search ranges."""
_SCIENTIFIC_POSITIONS = (0.0, 0.5, 1.0)


class FittedModel(NamedTuple):
    """The trials of a study, and the model that was fitted to them."""

    trials: Sequence[Trial]
    """Best trial first; failed trials come last."""
    surface: ResponseSurface
    fitted_trial_count: int
    """Number of trials to which the model was fitted."""
    names: tuple[str, ...]
    """Hyperparameters in the model, numeric ones first."""


def narrower_ranges(study: Study, spec: StudySpec) -> dict[str, tuple[float, float]]:
    """Return a narrower range (low, high) for each numeric hyperparameter that `spec` tunes and whose range can be cut.

    spec: a study that searches some of the hyperparameters of `study`. Ranges of scientific and conditional hyperparameters,
    training length, batch size and architecture never change. Empty without a model, a significant effect, or trials with the
    new fixed values.
    """
    fit = fit_response_model(study)
    if fit is None or any(n in spec.parameters and spec.parameters[n].role == "derived" for n in fit.names):
        return {}
    tuned = [n for n in fit.names if _is_range_tuned(study, spec, n)]
    cases = list(itertools.islice(_scientific_combinations(spec, fit), MAX_SCIENTIFIC_COMBINATIONS + 1))
    inside = trials_in_space(spec, fit.trials)
    if not tuned or len(cases) > MAX_SCIENTIFIC_COMBINATIONS or (not inside and _has_other_fixed_values(study, spec)):
        return {}
    room = RANGE_MARGIN_AFTER_CHANGE if trains_differently(study, spec) else RANGE_MARGIN
    # Few trials may have the new fixed values, so trials with other fixed values also show which part of the range was tried.
    shown = inside if len(inside) > NUMBER_OF_BEST_TRIALS else fit.trials
    draws = _draw_best_settings(study, spec, fit, cases)
    new: dict[str, tuple[float, float]] = {}
    for name in tuned:
        parameter = spec.parameters[name]
        leaders, tried = (
            _positions_in_range(spec, name, [t.params for t in trials]) for trials in (inside[:NUMBER_OF_BEST_TRIALS], shown)
        )
        if draws and math.isfinite(_positions_in_range(study.spec, name, [fit.trials[0].params])[0]):
            drawn = [_positions_in_range(spec, name, each) for each in draws]
            leaders, tried = leaders[np.isfinite(leaders)], tried[np.isfinite(tried)]
            part = _subrange_to_keep(drawn, leaders, tried, 1 - (1 - WITHIN) / len(tuned))
            kept = _add_margins(parameter, part, room, keep_low=parameter_kinds.is_regulariser(name))
            if kept != (parameter.low, parameter.high):
                new[name] = kept
    return new


def trains_differently(study: Study, spec: StudySpec) -> bool:
    """Return True if `spec` has another length, schedule, fixed value or new hyperparameters."""
    old_spec = study.spec
    if (spec.max_train_steps, spec.schedule) != (old_spec.max_train_steps, old_spec.schedule):
        return True
    return _has_other_fixed_values(study, spec) or not spec.searched.keys() <= old_spec.searched.keys()


def _has_other_fixed_values(study: Study, spec: StudySpec) -> bool:
    fixed = {n: p.value for n, p in study.spec.parameters.items() if p.role == "fixed"}
    return any(spec.parameters[n].value != value for n, value in fixed.items() if n in spec.parameters)


def chance_of_gain(study: Study, points: Sequence[Mapping[str, HyperparameterValue]]) -> float | None:
    """Return the probability that any of the settings `points` beats the best trial's by more than noise; None without a model."""
    fit = fit_response_model(study)
    if fit is None:
        return None
    settings_of_all = [fit.trials[0].params, *points]
    drawn = fit.surface.draw_responses([_positions_in_range(study.spec, name, settings_of_all) for name in fit.names])
    return float(np.mean(drawn[:, 0] - drawn[:, 1:].min(1) > fit.surface.noise_sd))


@computed
def fit_response_model(study: Study) -> FittedModel | None:
    """Fit the response model to the study's trials; None if these are too few or show no effect, if many were pruned, or for a
    probe."""
    if study.probe is not None or study.feasible.sum() < MIN_TRIALS_WITH_RESULT:
        return None
    tried = settings.read_settings(study)
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    trials, costs = [group[0] for group in tried.trials], tried.costs
    names = tuple(n for names in (tried.numeric, tried.choices) for n in names)
    done = np.isfinite(costs)
    if len(names) > MAX_HYPERPARAMETERS or done.sum() < MIN_TRIALS_WITH_RESULT or not np.ptp(costs[done]) > 0:
        return None
    values = np.full(len(costs), np.nan)
    values[done] = compress_costs(costs[done])
    values[~done] = np.nanmax(values)
    rows = ranks.choose_evenly_by_rank(values, MAX_FITTED_TRIALS)
    columns = [study.positions(n, trials)[rows] for n in names]
    numeric, choices = columns[: len(tried.numeric)], columns[len(tried.numeric) :]
    if _p_of_no_effect(numeric, choices, values[rows]) > SIGNIFICANCE_LEVEL:
        return None
    best_first = [trials[i] for i in np.lexsort((~done, values))]
    return FittedModel(best_first, ResponseSurface(numeric, choices, values[rows]), len(rows), names)


def _p_of_no_effect(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray) -> float:
    """Return the p-value of the hypothesis that `values`, (n,), depend on no hyperparameter: twice the smaller one of a test of
    parabolas along single hyperparameters, for few trials, and a test of any smooth dependence."""
    if not numeric and not choices:
        return 1.0
    p_single = (len(numeric) + len(choices)) * math.exp(ranks.log_p_values_of_axes(numeric, choices, values).min())
    blocks = [importance.axis_coordinates(u, True) for u in numeric] + [importance.axis_coordinates(u, False) for u in choices]
    rng = np.random.default_rng(RANDOM_SEED)
    p_smooth = importance.p_value_of_blocks([*blocks, np.hstack(blocks)], ranks.normal_scores(values), rng)
    return 2 * min(p_single, p_smooth)


# --- the next study's space -----------------------------------------------------------------------------------------------------


def _is_range_tuned(study: Study, spec: StudySpec, name: str) -> bool:
    parameter = spec.parameters.get(name)
    if parameter is None or not parameter.numeric or parameter.role != "nuisance" or parameter.when:
        return False
    if is_training_length(name) or parameter_kinds.is_batch_size(name) or not study.spec.parameters[name].numeric:
        return False
    return not parameter_kinds.searches_architecture(study, name)


def _scientific_combinations(spec: StudySpec, fit: FittedModel) -> Iterator[dict[str, HyperparameterValue]]:
    """Yield each combination of scientific values; three values represent a numeric range."""
    scientific = {n: spec.searched[n] for n in fit.names if n in spec.searched and spec.searched[n].role == "scientific"}
    scientific = {n: p for n, p in scientific.items() if not p.when}
    values = [[p.value_at_position(u) for u in _SCIENTIFIC_POSITIONS] if p.numeric else p.options for p in scientific.values()]
    for combination in itertools.product(*values):
        yield dict(zip(scientific, combination, strict=True))


def _draw_best_settings(
    study: Study, spec: StudySpec, fit: FittedModel, cases: Sequence[Mapping[str, HyperparameterValue]]
) -> list[list[Mapping[str, HyperparameterValue]]]:
    """Draw the best setting for each combination of scientific values; empty if one has no candidate in the space."""
    rng = np.random.default_rng(RANDOM_SEED)
    draws = []
    for case in cases:
        points = [p for p in _draw_candidate_settings(spec, fit, case, rng) if spec.forbidden_region_of(p) is None]
        if not points:
            return []
        best_points = fit.surface.draw_lowest_points([_positions_in_range(study.spec, name, points) for name in fit.names])
        draws.append([points[i] for i in best_points])
    return draws


def _draw_candidate_settings(
    spec: StudySpec, fit: FittedModel, case: Mapping[str, HyperparameterValue], rng: np.random.Generator
) -> list[Mapping[str, HyperparameterValue]]:
    """Draw candidate settings with the values of `case`, from the whole search space of `spec` and near the best trials."""
    fixed = {n: p.options[0] if len(p.options) == 1 else p.value for n, p in spec.parameters.items() if not p.searched}
    points: list[dict[str, HyperparameterValue]] = [
        {**{n: v for n, v in fixed.items() if v is not None}, **case}
        for _ in range(_NUMBER_OF_UNIFORM_POINTS + _POINTS_PER_PERTURBED_TRIAL * _NUMBER_OF_PERTURBED_TRIALS)
    ]
    leaders = [fit.trials[i % len(fit.trials)].params for i in range(_NUMBER_OF_PERTURBED_TRIALS)]
    scales = np.tile(
        np.repeat(_PERTURBATION_SCALES, _POINTS_PER_PERTURBED_TRIAL // len(_PERTURBATION_SCALES)), _NUMBER_OF_PERTURBED_TRIALS
    )
    for name in (n for n in fit.names if n in spec.searched and n not in case):
        parameter = spec.parameters[name]
        centres = np.repeat(_positions_in_range(spec, name, leaders), _POINTS_PER_PERTURBED_TRIAL)
        points_near_centres = np.clip(np.nan_to_num(centres, nan=0.5) + scales * rng.standard_normal(len(scales)), 0, 1)
        for point, u in zip(points, np.concatenate([rng.random(_NUMBER_OF_UNIFORM_POINTS), points_near_centres]), strict=True):
            point[name] = parameter.value_at_position(float(u))
    conditional = [n for n in fit.names if n in spec.parameters and spec.parameters[n].when]
    return [{n: v for n, v in p.items() if n not in conditional or meets_condition(spec.parameters[n], p)} for p in points]


def _positions_in_range(spec: StudySpec, name: str, points: Sequence[Mapping[str, HyperparameterValue]]) -> FloatArray:
    return spec.parameters[name].to_positions([p.get(name, "") for p in points])


# --- the part of a range to keep ------------------------------------------------------------------------------------------------


def _subrange_to_keep(
    draws: Sequence[FloatArray], leaders: FloatArray, tried: FloatArray, within: float
) -> tuple[float, float]:
    """Return the subrange (low, high) of the leading trials and, probably, of the best setting for all scientific values; it
    extends to the end of the range on a side where the best trial is the outermost one.

    draws: positions of the best setting, by case; leaders: those of the best trials in the space, best first; tried: those of
    all trials; within: probability that the best position lies in the subrange.
    """
    ends = np.array([np.quantile(u, [(1 - within) / 2, (1 + within) / 2]) for u in draws])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    if not len(tried):
        return low, high
    lowest, highest = float(tried.min()), float(tried.max())
    if max(float(np.mean(u < lowest)) for u in draws) <= MAX_CHANCE_BEYOND_TRIALS:
        low = max(low, lowest)
    if max(float(np.mean(u > highest)) for u in draws) <= MAX_CHANCE_BEYOND_TRIALS:
        high = min(high, highest)
    if not len(leaders):
        return low, high
    shown = np.clip(leaders, 0.0, 1.0)
    low, high = min(low, float(shown.min())), max(high, float(shown.max()))
    # If the best trial is the outermost one, results may improve beyond it, so keep the end of the range.
    return 0.0 if leaders[0] == lowest else low, 1.0 if leaders[0] == highest else high


def _add_margins(
    parameter: Parameter, part: tuple[float, float], margins: tuple[float, float], *, keep_low: bool
) -> tuple[float, float]:
    """Return the range (low, high) of the subrange `part` with a margin on both sides. keep_low: keep the low end of a linear
    range, so that a regulariser can still be turned off."""
    margin = margins[1] if parameter.scale == "linear" else margins[0] / parameter.decades
    low, high = part[0] - margin, part[1] + margin
    if parameter.scale == "linear" and keep_low:
        low = 0.0
    return range_of_span(
        parameter, (0.0 if low < MIN_RANGE_CUT_SHARE else low, 1.0 if high > 1 - MIN_RANGE_CUT_SHARE else high)
    )
