"""Detects studies whose results are too similar to rank the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.computed import computed
from advisor.computed.curves import noise
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.model.finding import MissingData
from advisor.model.study import Study, Trial
from advisor.model.words import number
from advisor.stats.heterogeneity import measure_heterogeneity

_SIGNIFICANCE_LEVEL = 0.05
"""Significance level: maximum probability that equally good settings seem to differ."""


@computed
def reason_settings_tie(study: Study) -> str | None:
    """Return a clause that says why the results do not rank the settings; None if they rank the settings or if this is unknown.

    Results do not rank the settings if they are equal, or differ no more than the results of equally good settings. The
    standard error comes from the size of the validation set, or else from repeats of settings, or else from noise between
    evaluations.
    """
    trials, metric = repeats.first_trial_per_setting(study.ranked()), study.spec.objective.metric
    if len(trials) < 2:
        return None
    if len({study.rank_key(t)[0] for t in trials}) == 1:
        return f"all {len(trials)} settings have the same best {metric}"
    try:
        errors = validation.standard_errors(study, trials)
    except MissingData:
        return _reason_within_noise(study, trials)
    costs = study.costs[[t.index for t in trials]]
    if (
        measure_heterogeneity(costs, errors * math.sqrt(1 - validation.ERROR_CORRELATION), _SIGNIFICANCE_LEVEL).p_value
        <= _SIGNIFICANCE_LEVEL
    ):
        return None
    return (
        f"the best {metric} of all {len(trials)} settings differs by {number(float(np.ptp(costs)), 2)} at most, no more than "
        f"chance on {round(trials[0].fact('n_valid')):,} validation examples"
    )


def _reason_within_noise(study: Study, trials: Sequence[Trial]) -> str | None:
    """Return a clause that says why the results are equal within training noise; None if they differ or the noise is unknown."""
    (deviation, measured), source = noise.noise_between_seeds(study), "the noise between seeds"
    if not measured:
        deviation, source = noise.noise_between_evaluations(study), "the noise between evaluations"
    costs = study.costs[[t.index for t in trials]]
    if (
        deviation <= 0
        or measure_heterogeneity(costs, np.full(len(costs), deviation), _SIGNIFICANCE_LEVEL).p_value <= _SIGNIFICANCE_LEVEL
    ):
        return None
    return (
        f"the best {study.spec.objective.metric} of all {len(trials)} settings differs by {number(float(np.ptp(costs)), 2)} at "
        f"most, no more than {source} ({number(deviation, 2)}, standard deviation) explains"
    )
