"""Causes of validation jumps between evaluations, and changes that reduce the jumps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from advisor.computed.curves.curve_tails import rate_at_end
from advisor.computed.curves.step_noise import MIN_EVALUATIONS
from advisor.model.change import Advise, SetSchedule
from advisor.model.space import FloatArray
from advisor.model.study import Signal, Study, Trial

_MAX_P = 0.05
"""Maximum median p-value at which training counts as jumping together with validation."""
_TRAINING: tuple[Signal, ...] = ("train_objective", "train_eval_loss")


def move_together(one: FloatArray, other: FloatArray) -> float:
    """Return the one-sided p-value that two curves (n,) at equal steps jump in parallel; NaN if too short or constant."""
    if len(one) < MIN_EVALUATIONS:
        return math.nan
    a, b = np.diff(one, 2), np.diff(other, 2)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(spearmanr(a, b, alternative="greater").pvalue)


def training_jumps(study: Study, trial: Trial) -> float:
    """Return the p-value that a training metric, evaluated at the same steps, jumps with the objective; NaN without one."""
    objective = study.cost_curve(trial).finite
    for signal in _TRAINING:
        training = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            training = -training
        _, mine, theirs = np.intersect1d(objective.steps, training.steps, return_indices=True)
        late = slice(len(mine) // 2, None)
        p = move_together(objective.values[mine[late]], training.values[theirs[late]])
        if not math.isnan(p):
            return p
    return math.nan


def noise_remedy(study: Study, trials: Sequence[Trial], *, constant: float) -> tuple[Advise | SetSchedule, str]:
    """Return (change that reduces the noise, its cause): a constant learning rate first, then the model or the validation set.

    constant: minimum final learning rate, as a share of its peak, that counts as not decayed.
    """
    if any(rate_at_end(study, t) > constant for t in trials):
        why = "The learning rate does not decay, and validation jumps between late evaluations."
        return SetSchedule(schedule={"kind": "cosine"}, why=why), "the learning rate does not decay"
    together = [p for t in trials if not math.isnan(p := training_jumps(study, t))]
    if together and np.median(together) <= _MAX_P:
        text = "Average the weights of the last steps (Polyak averaging) and evaluate the average, or raise the batch size."
        return Advise(text=text), "the model: training jumps together with validation"
    if together:
        more = Advise(text="Evaluate on more validation data.", new_scores=True)
        return more, "a small validation set: training does not jump with it"
    text = "Average the weights of the last steps, decay the learning rate, raise the batch size or use more validation data."
    return Advise(text=text), "unknown: log the learning rate, and the objective on training data"
