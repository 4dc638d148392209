"""A test of the positions of a study's trials: did their sampler use earlier results?"""

from __future__ import annotations

import numpy as np

from advisor.computed import computed
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding
from advisor.model.study import Study
from advisor.stats import adaptive

LEVEL = 0.05
"""Maximum p-value at which a sampler counts as having used earlier results."""
WEAKENED = 0.8
"""Factor on a finding's confidence if its test assumes that the sampler ignored results but the sampler used them."""


@computed
def p_value(study: Study) -> float | None:
    """Return the probability that later trials lie as near to good earlier ones by chance; None for too few trials."""
    # Trials of earlier rounds follow the ranges of those rounds and do not show how this round was drawn.
    chosen = [t for t in study.trials if study.ended[t.index] and t.round is None]
    if len(chosen) < adaptive.MIN_POINTS or not study.searched:
        return None
    if len({t.started for t in chosen}) > len(chosen) // 2:
        chosen.sort(key=lambda t: (t.started or 0.0, t.index))
    costs = np.where(study.feasible, study.costs, np.nan)[[t.index for t in chosen]]
    positions = np.stack([study.positions(name, chosen) for name in study.searched], axis=1)
    return adaptive.p_value(positions, costs)


def learned(study: Study) -> bool:
    """Return True if earlier results decided the positions of later trials, as in TPE and other Bayesian optimisation."""
    p = p_value(study)
    return p is not None and p <= LEVEL


def weakened(finding: Finding) -> Finding:
    """Return the finding as a doubtful note, because its test assumes that the sampler ignored results."""
    reason = FigureEvidence(rows=(("sampling", "adaptive: later trials lie near good earlier ones in any case"),))
    doubt = finding.doubt * WEAKENED
    return finding.model_copy(update={"severity": "note", "doubt": doubt, "evidence": (*finding.evidence, reason)})
