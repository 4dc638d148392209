"""Forecasts the results of the next study with a Gaussian process over all hyperparameters together."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.space import settings
from advisor.model.errors import AdvisorError
from advisor.model.prediction import BestBeyond
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.sampling.halton import draw_trials
from advisor.stats import surface
from advisor.stats.ranks import choose_evenly_by_rank

MAX_FORECAST_SETTINGS = 200
"""Maximum number of trials of the next study whose results are forecast. The computing time grows with the cube of the number
of trials."""


def chance_of_best_beyond(study: Study, after: StudySpec, expectation: BestBeyond) -> float | None:
    """Return the probability that the prediction comes true in the trials of the next study, without earlier trials; None if
    unknown.

    The sampler seed of the next study determines the settings whose results are forecast. High costs are compressed, so that a
    few bad trials do not hide how results change towards the end of the range. If there are many trials, the model is fitted to
    a sample of trials that are evenly spaced in rank. Only results of the first `MAX_FORECAST_SETTINGS` settings of the next
    study are forecast.
    """
    tried = settings.read_settings(study)
    succeeded = ~tried.failed
    if not succeeded.any():
        return None
    try:
        points = list(draw_trials(after, min(after.trials or len(tried), MAX_FORECAST_SETTINGS)))
    except AdvisorError:  # an adaptive sampler chooses settings by results, so the settings are not known yet
        return None
    names = [*tried.numeric, *tried.choices]
    new_positions = [study.spec.parameters[n].to_positions([p.get(n, "") for p in points]) for n in names]
    chosen = np.flatnonzero(succeeded)[choose_evenly_by_rank(tried.costs[succeeded])]
    columns = [[u[chosen] for u in axes.values()] for axes in (tried.numeric, tried.choices)]
    threshold = [] if expectation.than is None else [expectation.than if study.minimize else -expectation.than]
    costs = np.append(tried.costs[chosen], threshold)
    values = surface.compress_costs(costs)[: len(chosen)]
    results = surface.draw_results_at(columns[0], columns[1], values, new_positions)
    if not len(results) or expectation.parameter not in names:
        return None
    positions = new_positions[names.index(expectation.parameter)]
    beyond = positions > 1 if expectation.side == "high" else positions < 0
    if not beyond.any():
        return None
    results = np.maximum(surface.expand_costs(results, costs), curve_tails.lowest_possible_cost(study, costs))
    rival = np.min(results, axis=1, where=~beyond, initial=min(threshold, default=math.inf))
    return float(np.mean(rival - results[:, beyond].min(1) > expectation.min_lead))
