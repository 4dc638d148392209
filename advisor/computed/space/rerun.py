"""Predicts the best result of the study if it ran again with other random settings and other seeds."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed import computed
from advisor.computed.curves import curve_tails
from advisor.computed.space import sampler, settings
from advisor.model.finding import MissingData
from advisor.model.study import Study
from advisor.stats import group_effect

MIN_SETTINGS_WITH_RESULT = 8


@computed
def further_results(study: Study) -> group_effect.FurtherResults:
    """Draw results of further random settings, as many as the study tried, from a response fitted to its results."""
    tried = settings.read_settings(study)
    inputs = list(tried.numeric.values()), list(tried.choices.values())
    return group_effect.draw_further_results(*inputs, tried.costs, len(tried))


def best_result_interval(study: Study) -> tuple[float, float] | None:
    """Return the 80 % interval, in costs, for the best result if the study ran again with other random settings and seeds. Return
    None for few results, a grid, an adaptive sampler or many pruned trials, or if the fit predicts only better results.

    The noise of the fit is symmetric, so the interval is cut at the lowest possible cost; fits to logarithms of costs gave too
    narrow intervals (62 to 68 % of the results instead of 80 to 85 %)."""
    tried = settings.read_settings(study)
    try:
        settings.require_unpruned(study)
    except MissingData:
        return None
    costs = tried.costs[np.isfinite(tried.costs)]
    if len(costs) < MIN_SETTINGS_WITH_RESULT or len(tried) > group_effect.MAX_DRAWN_POINTS or not np.ptp(costs) > 0:
        return None
    if not (tried.numeric or tried.choices) or is_full_grid(tried) or sampler.did_sampler_use_results(study):
        return None
    low, high = np.quantile(further_results(study).best_results, [0.1, 0.9])
    if high < costs.min():
        return None
    lowest_cost = curve_tails.lowest_possible_cost(study, costs)
    return max(float(low), lowest_cost), max(float(high), lowest_cost)


def is_full_grid(tried_settings: settings.Settings) -> bool:
    counts = [len(np.unique(u)) for u in (*tried_settings.numeric.values(), *tried_settings.choices.values())]
    return len(counts) > 1 and math.prod(counts) == len(tried_settings)
