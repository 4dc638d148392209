"""Tests whether the study's sampler used earlier results, from the positions of the trials in their search ranges."""

from __future__ import annotations

import numpy as np

from advisor.computed import computed
from advisor.model.evidence import table
from advisor.model.finding import Finding
from advisor.model.study import Study
from advisor.stats import adaptive

SIGNIFICANCE_LEVEL = 0.05
ADAPTIVE_CONFIDENCE_FACTOR = 0.8
"""Factor on the confidence of findings whose tests assume a sampler that used no results, if the sampler used results."""


@computed
def p_value_of_adaptivity(study: Study) -> float | None:
    """Return the p-value of the hypothesis that later trials lie near good ones only by chance; None for too few trials."""
    # Trials of earlier rounds were drawn from other ranges, so they say nothing about the sampler of the current round.
    ended_trials = [t for t in study.trials if study.ended[t.index] and t.round is None]
    if len(ended_trials) < adaptive.MIN_POINTS or not study.searched:
        return None
    if len({t.started for t in ended_trials}) > len(ended_trials) // 2:
        ended_trials.sort(key=lambda t: (t.started or 0.0, t.index))
    costs = np.where(study.feasible, study.costs, np.nan)[[t.index for t in ended_trials]]
    positions = np.stack([study.positions(name, ended_trials) for name in study.searched], axis=1)
    return adaptive.p_value_of_adaptivity(positions, costs)


def did_sampler_use_results(study: Study) -> bool:
    """Return True if earlier results decided which settings were tried later, as in Bayesian optimisation."""
    p = p_value_of_adaptivity(study)
    return p is not None and p <= SIGNIFICANCE_LEVEL


def weaken_finding(finding: Finding) -> Finding:
    """Turn a finding whose test assumes a non-adaptive sampler into a note with lower confidence."""
    adaptivity_evidence = table(("sampling", "adaptive: later trials always lie near good earlier trials"))
    doubt = finding.doubt * ADAPTIVE_CONFIDENCE_FACTOR
    return finding.model_copy(update={"severity": "note", "doubt": doubt, "evidence": (*finding.evidence, adaptivity_evidence)})


def weaken_if_adaptive(study: Study, finding: Finding) -> Finding:
    """Return the finding, weakened if the sampler used earlier results."""
    return weaken_finding(finding) if did_sampler_use_results(study) else finding
