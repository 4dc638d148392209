"""Uses a model of all hyperparameters to find the part of each range in which the best setting of the next study probably lies.

A Gaussian process (module `surface`) is fitted to the costs of all settings; a failed setting gets the worst cost. Each
posterior draw selects the best of many candidate points in the next study's space. The new range contains the middle 90 % of
the selected points, the best settings so far, and a margin at each end. The new range ends at the outermost trials, unless the
optimum probably lies beyond them or the best trial is the outermost one. If many trials were pruned, no model is fitted,
because pruned trials compare only at an early step, where settings that learn fast at first look best.
`benchmarks/quality/ranges.py` counts errors."""

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
BEST_SETTING_INSIDE_PROBABILITY = 0.9
"""Probability that the best setting lies inside all new ranges, before the ranges are limited to tried values."""
PROMISING_RANGE_REASON = (
    f"the best value lies here with a probability of about {100 * BEST_SETTING_INSIDE_PROBABILITY:.0f} %, by a model"
)
MAX_CHANCE_BEYOND_TRIALS = 0.25
"""Maximum probability that the best setting lies beyond the outermost trial if a range ends at this trial. Our choice."""
RANGE_MARGINS = (0.25, 0.1)
"""Margin on each side of a new range: in decades on a log scale, as a share of the old range on a linear scale. Our choice."""
RANGE_MARGINS_AFTER_CHANGE = (0.5, 0.25)
"""Margin on each side of a new range if the next study trains differently, because the best values may then move."""
NUMBER_OF_BEST_TRIALS = 2
"""Number of best trials that a new range must contain."""
MIN_RANGE_CUT_SHARE = 0.1
"""Minimum share of a range that a cut at one end must remove. Our choice."""
SIGNIFICANCE_LEVEL = 0.05
"""Significance level of the effect of all hyperparameters. Without a significant effect, no model is fitted."""
MAX_FITTED_TRIALS = 150
"""Maximum number of trials, evenly spaced in rank, to which the model is fitted; the time grows with the cube of this number."""
MAX_HYPERPARAMETERS = 20
"""Maximum number of hyperparameters in the model; with more, the trials of a study hardly rule out any value."""
MAX_SCIENTIFIC_COMBINATIONS = 9
"""Maximum number of combinations of scientific values; a new range must contain good settings for each combination."""
RANDOM_SEED = 0
_NUMBER_OF_UNIFORM_POINTS = 300
"""Number of random candidates from the whole search space."""
_POINTS_PER_PERTURBED_TRIAL = 40
"""Number of random candidates near each of the best trials."""
_NUMBER_OF_PERTURBED_TRIALS = 5
_PERTURBATION_SCALES = (0.3, 0.1)
"""Standard deviations of the distances of candidates from the best trials, as shares of the search range."""
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
    training length, batch size and architecture never change. A range also stays if shuffled values would fit equally well: the
    best values of a hyperparameter without effect lie anywhere. Empty without a model, a significant effect, or trials with the
    new fixed values.
    """
    fit = fit_response_model(study)
    if fit is None or any(n in spec.parameters and spec.parameters[n].role == "derived" for n in fit.names):
        return {}
    names = [n for n in fit.names if _is_range_tuned(study, spec, n)]
    combinations = list(itertools.islice(_scientific_combinations(spec, fit), MAX_SCIENTIFIC_COMBINATIONS + 1))
    trials_inside = trials_in_space(spec, fit.trials)
    if not names or len(combinations) > MAX_SCIENTIFIC_COMBINATIONS:
        return {}
    if not trials_inside and _has_other_fixed_values(study, spec):
        return {}
    p_values = _p_values_of_numbers(study)
    names = [n for n in names if p_values.get(n, 1.0) <= SIGNIFICANCE_LEVEL]
    margins = RANGE_MARGINS_AFTER_CHANGE if trains_differently(study, spec) else RANGE_MARGINS
    # Few trials may have the new fixed values, so trials with other fixed values also show which part of the range was tried.
    shown_trials = trials_inside if len(trials_inside) > NUMBER_OF_BEST_TRIALS else fit.trials
    drawn_settings = _draw_best_settings(study, spec, fit, combinations)
    new_ranges: dict[str, tuple[float, float]] = {}
    for name in names:
        parameter = spec.parameters[name]
        shown = (trials_inside[:NUMBER_OF_BEST_TRIALS], shown_trials)
        best, tried = (_positions_in_range(spec, name, [t.params for t in trials]) for trials in shown)
        if drawn_settings and math.isfinite(_positions_in_range(study.spec, name, [fit.trials[0].params])[0]):
            drawn = [_positions_in_range(spec, name, each) for each in drawn_settings]
            best, tried = (u[np.isfinite(u)] for u in (best, tried))
            probability = 1 - (1 - BEST_SETTING_INSIDE_PROBABILITY) / len(names)
            subrange = _kept_subrange(drawn, best, tried, probability)
            new_range = _add_margins(parameter, subrange, margins, keep_low=parameter_kinds.is_regulariser(name))
            if new_range != (parameter.low, parameter.high):
                new_ranges[name] = new_range
    return new_ranges


@computed
def _p_values_of_numbers(study: Study) -> dict[str, float]:
    fit = fit_response_model(study)
    if fit is None:
        return {}
    numeric = [n for n in fit.names if study.spec.parameters[n].numeric]
    return {name: fit.surface.p_value_of_axis(axis) for axis, name in enumerate(numeric)}


def trains_differently(study: Study, spec: StudySpec) -> bool:
    """Return True if `spec` has another length, schedule, fixed value or new hyperparameters."""
    old = study.spec
    if (spec.max_train_steps, spec.schedule) != (old.max_train_steps, old.schedule):
        return True
    return _has_other_fixed_values(study, spec) or not spec.searched.keys() <= old.searched.keys()


def _has_other_fixed_values(study: Study, spec: StudySpec) -> bool:
    fixed_values = {n: p.value for n, p in study.spec.parameters.items() if p.role == "fixed"}
    return any(spec.parameters[n].value != value for n, value in fixed_values.items() if n in spec.parameters)


def chance_of_gain(study: Study, points: Sequence[Mapping[str, HyperparameterValue]]) -> float | None:
    """Return the probability that any setting in `points` beats that of the best trial by more than noise; None without a model."""
    fit = fit_response_model(study)
    if fit is None:
        return None
    candidates = [fit.trials[0].params, *points]
    costs = fit.surface.draw_responses([_positions_in_range(study.spec, name, candidates) for name in fit.names])
    return float(np.mean(costs[:, 0] - costs[:, 1:].min(1) > fit.surface.noise_sd))


@computed
def fit_response_model(study: Study) -> FittedModel | None:
    """Fit the response model to the study's trials; None for few trials, no effect, much pruning, or a probe."""
    if study.probe is not None or study.feasible.sum() < MIN_TRIALS_WITH_RESULT:
        return None
    tried = settings.read_settings(study)
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    trials, costs = [group[0] for group in tried.trials], tried.costs
    names = (*tried.numeric, *tried.choices)
    has_result = np.isfinite(costs)
    if len(names) > MAX_HYPERPARAMETERS or has_result.sum() < MIN_TRIALS_WITH_RESULT or not np.ptp(costs[has_result]) > 0:
        return None
    compressed = np.full(len(costs), np.nan)
    compressed[has_result] = compress_costs(costs[has_result])
    compressed[~has_result] = np.nanmax(compressed)
    fitted = ranks.choose_evenly_by_rank(compressed, MAX_FITTED_TRIALS)
    positions = [study.positions(n, trials)[fitted] for n in names]
    numeric, choices = positions[: len(tried.numeric)], positions[len(tried.numeric) :]
    if _p_of_no_effect(numeric, choices, compressed[fitted]) > SIGNIFICANCE_LEVEL:
        return None
    best_first = [trials[i] for i in np.lexsort((~has_result, compressed))]
    return FittedModel(best_first, ResponseSurface(numeric, choices, compressed[fitted]), len(fitted), names)


def _p_of_no_effect(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray) -> float:
    """Return the p-value of the hypothesis that `values`, shape (n,), depend on no hyperparameter: twice the smaller p-value of
    two tests, of parabolas along single hyperparameters (sensitive for few trials) and of any smooth dependence."""
    if not numeric and not choices:
        return 1.0
    p_single = (len(numeric) + len(choices)) * math.exp(ranks.log_p_values_of_axes(numeric, choices, values).min())
    blocks = [importance.axis_coordinates(u, i < len(numeric)) for i, u in enumerate([*numeric, *choices])]
    rng = np.random.default_rng(RANDOM_SEED)
    p_smooth = importance.p_value_of_blocks([*blocks, np.hstack(blocks)], ranks.normal_scores(values), rng)
    return 2 * min(p_single, p_smooth)


def _is_range_tuned(study: Study, spec: StudySpec, name: str) -> bool:
    parameter = spec.parameters.get(name)
    if parameter is None or not parameter.numeric or parameter.role != "nuisance" or parameter.when:
        return False
    if is_training_length(name) or parameter_kinds.is_batch_size(name) or not study.spec.parameters[name].numeric:
        return False
    return not parameter_kinds.searches_architecture(study, name)


def _scientific_combinations(spec: StudySpec, fit: FittedModel) -> Iterator[dict[str, HyperparameterValue]]:
    """Yield each combination of scientific values; three values represent a numeric range."""
    searched = {n: spec.searched[n] for n in fit.names if n in spec.searched}
    scientific = {n: p for n, p in searched.items() if p.role == "scientific" and not p.when}
    values = ([p.value_at_position(u) for u in _SCIENTIFIC_POSITIONS] if p.numeric else p.options for p in scientific.values())
    for combination in itertools.product(*values):
        yield dict(zip(scientific, combination, strict=True))


def _draw_best_settings(
    study: Study, spec: StudySpec, fit: FittedModel, combinations: Sequence[Mapping[str, HyperparameterValue]]
) -> list[list[Mapping[str, HyperparameterValue]]]:
    """Draw the best setting for each combination of scientific values; empty if a combination has no candidate in the space."""
    rng = np.random.default_rng(RANDOM_SEED)
    drawn_best_settings = []
    for combination in combinations:
        candidates = [p for p in _draw_candidate_settings(spec, fit, combination, rng) if spec.forbidden_region_of(p) is None]
        if not candidates:
            return []
        best_indices = fit.surface.draw_lowest_points([_positions_in_range(study.spec, name, candidates) for name in fit.names])
        drawn_best_settings.append([candidates[i] for i in best_indices])
    return drawn_best_settings


def _draw_candidate_settings(
    spec: StudySpec, fit: FittedModel, scientific_values: Mapping[str, HyperparameterValue], rng: np.random.Generator
) -> list[Mapping[str, HyperparameterValue]]:
    """Draw candidate settings with `scientific_values`, from the whole search space of `spec` and near the best trials."""
    fixed_values = {n: p.options[0] if len(p.options) == 1 else p.value for n, p in spec.parameters.items() if not p.searched}
    candidates: list[dict[str, HyperparameterValue]] = [
        {**{n: v for n, v in fixed_values.items() if v is not None}, **scientific_values}
        for _ in range(_NUMBER_OF_UNIFORM_POINTS + _POINTS_PER_PERTURBED_TRIAL * _NUMBER_OF_PERTURBED_TRIALS)
    ]
    best_settings = [fit.trials[i % len(fit.trials)].params for i in range(_NUMBER_OF_PERTURBED_TRIALS)]
    sds = np.repeat(_PERTURBATION_SCALES, _POINTS_PER_PERTURBED_TRIAL // len(_PERTURBATION_SCALES))
    sds = np.tile(sds, _NUMBER_OF_PERTURBED_TRIALS)
    for name in (n for n in fit.names if n in spec.searched and n not in scientific_values):
        parameter = spec.parameters[name]
        centres = np.repeat(_positions_in_range(spec, name, best_settings), _POINTS_PER_PERTURBED_TRIAL)
        perturbed = np.clip(np.nan_to_num(centres, nan=0.5) + sds * rng.standard_normal(len(sds)), 0, 1)
        positions = np.concatenate([rng.random(_NUMBER_OF_UNIFORM_POINTS), perturbed])
        for point, u in zip(candidates, positions, strict=True):
            point[name] = parameter.value_at_position(float(u))
    conditional = [n for n in fit.names if n in spec.parameters and spec.parameters[n].when]
    return [{n: v for n, v in p.items() if n not in conditional or meets_condition(spec.parameters[n], p)} for p in candidates]


def _positions_in_range(spec: StudySpec, name: str, points: Sequence[Mapping[str, HyperparameterValue]]) -> FloatArray:
    return spec.parameters[name].to_positions([p.get(name, "") for p in points])


def _kept_subrange(drawn: Sequence[FloatArray], best: FloatArray, tried: FloatArray, probability: float) -> tuple[float, float]:
    """Return the subrange (low, high) that contains the best trials and, with `probability`, the best setting for each
    combination of scientific values. The subrange extends to the end of the range on a side where the best trial is the
    outermost one.

    drawn: positions of the drawn best settings, one array per combination. best: positions of the best trials
    in the space, best first. tried: positions of all trials.
    """
    quantiles = np.array([np.quantile(u, [(1 - probability) / 2, (1 + probability) / 2]) for u in drawn])
    low, high = float(quantiles[:, 0].min()), float(quantiles[:, 1].max())
    if not len(tried):
        return low, high
    lowest, highest = float(tried.min()), float(tried.max())
    if max(float(np.mean(u < lowest)) for u in drawn) <= MAX_CHANCE_BEYOND_TRIALS:
        low = max(low, lowest)
    if max(float(np.mean(u > highest)) for u in drawn) <= MAX_CHANCE_BEYOND_TRIALS:
        high = min(high, highest)
    if not len(best):
        return low, high
    clipped = np.clip(best, 0.0, 1.0)
    low, high = min(low, float(clipped.min())), max(high, float(clipped.max()))
    # If the best trial is the outermost one, results may improve beyond it, so keep the end of the range.
    return 0.0 if best[0] == lowest else low, 1.0 if best[0] == highest else high


def _add_margins(
    parameter: Parameter, subrange: tuple[float, float], margins: tuple[float, float], *, keep_low: bool
) -> tuple[float, float]:
    """Return the range (low, high) of `subrange` with a margin on both sides. keep_low: keep the low end of a linear
    range, so that a regulariser can still be turned off."""
    margin = margins[1] if parameter.scale == "linear" else margins[0] / parameter.decades
    low, high = subrange[0] - margin, subrange[1] + margin
    if low < MIN_RANGE_CUT_SHARE or (parameter.scale == "linear" and keep_low):
        low = 0.0
    return range_of_span(parameter, (low, 1.0 if high > 1 - MIN_RANGE_CUT_SHARE else high))
