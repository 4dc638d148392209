"""Whether trials overfit the more, the better they train and the higher their learning rate: then a low rate regularises."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from scipy import stats

from advisor.computed.curves.overfit import Overfit, read_overfits
from advisor.computed.space.kinds import is_regulariser
from advisor.computed.stability import instability
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

FEWEST = 5
"""Trials with which an order can be told from chance at the 5 % level, in two respects at once."""
_EXACT = 8
_TENTH = 10


@dataclass(frozen=True)
class Crippled:
    """Trials whose validation and training curves can both be read, n of them, lowest learning rate first.

    Left out are those at a higher rate than the best trial's that train no better than it: what hampers them is another matter.
    """

    rate: str
    """The searched learning rate."""
    rates: FloatArray
    readings: tuple[Overfit, ...]
    """Of the objective."""
    levels: FloatArray
    """Level of the training cost at the end of the training, shape (n,)."""
    p_rate: float
    """How often rates that have nothing to do with it would go with overfitting as closely; 1 where a regulariser goes closer."""
    p_training: float
    """The same of a better fit of the training data."""

    @property
    def p(self) -> float:
        """How often chance would show both."""
        return max(self.p_rate, self.p_training)


def read_crippled(study: Study, trials: list[Trial], *, material: float) -> Crippled | None:
    """Reads the feasible trials, best first; None where no learning rate is searched, or too few trials have one and curves.

    material: smallest rise that counts, as in `read_overfit`.
    """
    found = instability.learning_rates(study)
    if found is None:
        return None
    name, rates = found
    kept = []
    for reading in read_overfits(study, trials, study.spec.objective.metric, study.cost_curve, material=material):
        training, at = study.train_cost_curve(reading.trial).finite.values, reading.trial.index
        if len(training) and np.isfinite(rates[at]):
            end = float(np.median(training[-max(len(training) // _TENTH, 1) :]))
            kept.append((float(rates[at]), at, reading, end))
    best = next((k for k in kept if k[1] == trials[0].index), None)
    if best is None or len(kept) < FEWEST or len({k[0] for k in kept}) < 3:
        return None
    kept = sorted((k for k in kept if k[0] <= best[0] or k[3] < best[3]), key=lambda k: k[:2])
    of = np.array([k[0] for k in kept])
    readings, levels = tuple(k[2] for k in kept), np.array([k[3] for k in kept])
    amounts = np.array([max(r.rise.height, 0.0) if r.p < 1 else 0.0 for r in readings])
    p_rate = together(of, amounts, "greater")
    for other in (n for n in study.searched if n != name and is_regulariser(n)):
        strengths = study.positions(other, [r.trial for r in readings])
        if np.isfinite(strengths).all() and together(strengths, amounts, "less") <= p_rate:
            p_rate = 1.0
    return Crippled(name, of, readings, levels, p_rate, together(levels, amounts, "less"))


def together(a: FloatArray, b: FloatArray, alternative: Literal["greater", "less"]) -> float:
    """p-value of the rank correlation of two arrays (n,) being greater or less than none: exact for up to 8, Student's t beyond."""
    ranks_a, ranks_b = stats.rankdata(a), stats.rankdata(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return 1.0
    if len(a) > _EXACT:
        return float(stats.spearmanr(a, b, alternative=alternative).pvalue)
    sign = 1.0 if alternative == "greater" else -1.0
    orders = np.array(list(permutations(ranks_b)))
    return float(np.mean(sign * (orders @ ranks_a) >= sign * float(ranks_a @ ranks_b) - 1e-9))
