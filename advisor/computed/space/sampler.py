"""Whether the sampler of a study learned from results, judged by where its trials lie."""

from __future__ import annotations

import numpy as np

from advisor.computed import computed
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding
from advisor.model.study import Study
from advisor.stats import adaptive

LEVEL = 0.05
"""Maximum p-value at which trials count as drawn by a sampler that learned."""
WEAKENED = 0.8
"""Factor on the confidence of a finding whose test assumes that trials were drawn without regard to results."""


@computed
def learned(study: Study) -> bool:
    """Return whether earlier results decided where later trials lie, as with TPE and other Bayesian optimisation."""
    # Trials of earlier rounds lie where those rounds searched and say nothing about how this round was drawn.
    chosen = [t for t in study.trials if study.ended[t.index] and t.round is None]
    if len(chosen) < adaptive.MIN_POINTS or not study.searched:
        return False
    if len({t.started for t in chosen}) > len(chosen) // 2:
        chosen.sort(key=lambda t: (t.started or 0.0, t.index))
    costs = np.where(study.feasible, study.costs, np.nan)[[t.index for t in chosen]]
    positions = np.stack([study.positions(name, chosen) for name in study.searched], axis=1)
    return adaptive.p_value(positions, costs) <= LEVEL


def weakened(finding: Finding) -> Finding:
    """Return the finding as a less sure note: its test assumes that trials were drawn without regard to results."""
    reason = FigureEvidence(rows=(("sampling", "adaptive: later trials lie near good earlier ones in any case"),))
    confidence = round(finding.confidence * WEAKENED, 3)
    return finding.model_copy(
        update={"severity": "note", "confidence": confidence, "evidence": (*finding.evidence, reason)}
    )
