"""How the trials of a study were drawn, as far as they show it."""

from __future__ import annotations

import numpy as np

from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding
from advisor.model.study import Study
from advisor.stats import adaptive

LEVEL = 0.05
"""P-value up to which trials count as drawn by a sampler that learned."""
WEAKENED = 0.8
"""What the confidence of a finding is multiplied by whose test takes trials to be drawn without regard to results."""


def learned(study: Study) -> bool:
    """Whether later trials were placed by the results of earlier ones, as TPE and other Bayesian optimisation place them."""
    # Trials of earlier rounds lie where those rounds searched, which says nothing of how this one was drawn.
    chosen = [t for t in study.trials if study.ended[t.index] and t.round is None]
    if len(chosen) < adaptive.MIN_POINTS or not study.searched:
        return False
    if len({t.started for t in chosen}) > len(chosen) // 2:
        chosen.sort(key=lambda t: (t.started or 0.0, t.index))
    costs = np.where(study.feasible, study.costs, np.nan)[[t.index for t in chosen]]
    positions = np.stack([study.positions(name, chosen) for name in study.searched], axis=1)
    return adaptive.p_value(positions, costs) <= LEVEL


def weakened(finding: Finding) -> Finding:
    """The finding as a note that says why it is less sure: its test takes trials to be drawn without regard to results."""
    said = FigureEvidence(rows=(("sampling", "later trials follow earlier results, so they crowd by themselves"),))
    confidence = round(finding.confidence * WEAKENED, 3)
    return finding.model_copy(
        update={"severity": "note", "confidence": confidence, "evidence": (*finding.evidence, said)}
    )
