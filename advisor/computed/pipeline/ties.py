"""Detects studies whose results are too similar to rank the settings."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed import computed
from advisor.computed.curves import noise
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.model.finding import MissingData
from advisor.model.study import Study
from advisor.model.words import number
from advisor.stats.heterogeneity import measure_heterogeneity

_SIGNIFICANCE_LEVEL = 0.05
"""Maximum probability that equally good settings seem to differ."""


@computed
def reason_settings_tie(study: Study) -> str | None:
    """Return a clause that says why the results do not rank the settings: they are equal, or differ no more than results of
    equally good settings do. None if the results rank the settings, or if the noise is unknown.

    The noise is estimated from the size of the validation set, else from repeats of settings, else from successive evaluations.
    """
    trials, metric = repeats.first_trial_per_setting(study.ranked()), study.spec.objective.metric
    if len(trials) < 2:
        return None
    if len({study.rank_key(t)[0] for t in trials}) == 1:
        return f"all {len(trials)} settings have the same best {metric}"
    try:
        standard_errors = validation.standard_errors(study, trials) * math.sqrt(1 - validation.ERROR_CORRELATION)
        noise_text = f"chance on {round(trials[0].fact('n_valid')):,} validation examples"
    except MissingData:
        (deviation, measured), source = noise.noise_between_seeds(study), "the noise between seeds"
        if not measured:
            deviation, source = noise.noise_between_evaluations(study), "the noise between evaluations"
        if deviation <= 0:
            return None
        standard_errors = np.full(len(trials), deviation)
        noise_text = f"{source} ({number(deviation, 2)}, standard deviation) explains"
    costs = study.costs[[t.index for t in trials]]
    if measure_heterogeneity(costs, standard_errors, _SIGNIFICANCE_LEVEL).p_value <= _SIGNIFICANCE_LEVEL:
        return None
    difference = number(float(np.ptp(costs)), 2)
    return f"the best {metric} of all {len(trials)} settings differs by {difference} at most, no more than {noise_text}"
