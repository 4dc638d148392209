"""Finds causes of jumps between the evaluations of a validation curve, and changes that reduce these jumps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from advisor.computed.curves.step_noise import MIN_EVALUATIONS_FOR_NOISE
from advisor.computed.pipeline.validation import MAX_VALIDATION_SET_GROWTH
from advisor.computed.steps.schedules import MAX_DECAYED_RATE_SHARE, final_rate_share
from advisor.model.change import Advise, SetSchedule
from advisor.model.space import FloatArray
from advisor.model.study import Signal, Study, Trial

_MAX_P_VALUE = 0.05
"""Maximum median p-value at which training metrics count as jumping at the same steps as validation metrics."""
_TRAINING_SIGNALS: tuple[Signal, ...] = ("train_objective", "train_eval_loss")


def p_of_independent_jumps(one: FloatArray, other: FloatArray) -> float:
    """Return the one-sided p-value of the hypothesis that two curves (n,) jump independently; NaN if the curves are too short
    or constant."""
    if len(one) < MIN_EVALUATIONS_FOR_NOISE:
        return math.nan
    a, b = np.diff(one, 2), np.diff(other, 2)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(spearmanr(a, b, alternative="greater").pvalue)


def p_of_unrelated_jumps(study: Study, trial: Trial) -> float:
    """Return the p-value of the hypothesis that the objective and a training metric jump at unrelated steps; NaN if there is no
    training metric.
    """
    objective = study.cost_curve(trial).finite
    for signal in _TRAINING_SIGNALS:
        training = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            training = -training
        _, indices, training_indices = np.intersect1d(objective.steps, training.steps, return_indices=True)
        second_half = slice(len(indices) // 2, None)
        p = p_of_independent_jumps(objective.values[indices[second_half]], training.values[training_indices[second_half]])
        if not math.isnan(p):
            return p
    return math.nan


def find_noise_remedy(
    study: Study, trials: Sequence[Trial], *, constant: float, examples: float
) -> tuple[Advise | SetSchedule, str]:
    """Return (change that reduces the noise, cause of the noise).

    A constant learning rate is considered first, then the model and the validation set.

    constant: minimum final learning rate, as a share of its peak, that counts as not decayed; examples: number of validation
    examples needed to separate the trials, as a multiple of the present number.
    """
    ends = [final_rate_share(study, t) for t in trials]
    if any(end > constant for end in ends):
        why = "The learning rate does not decay, and validation jumps between late evaluations."
        return SetSchedule(schedule={"kind": "cosine"}, why=why), "the learning rate does not decay"
    p_values = [p for t in trials if not math.isnan(p := p_of_unrelated_jumps(study, t))]
    if p_values and np.median(p_values) <= _MAX_P_VALUE:
        text = "Average the weights of the last steps (Polyak averaging) and evaluate the average, or raise the batch size."
        return Advise(text=text), "the model: training jumps together with validation"
    if study.kind == "reinforcement-learning":
        return _advise_more_examples(examples, "episodes"), "too few episodes in each evaluation"
    if p_values:
        return _advise_more_examples(examples), "a small validation set: training does not jump with it"
    if all(map(math.isnan, ends)):
        text = "Make evaluations less noisy: decay the learning rate, or average the weights, or use more validation data."
        return Advise(text=text), "unknown: log the learning rate, and evaluate on training data as well"
    text = "Make evaluations less noisy: average the weights, or use more validation data."
    if all(end <= MAX_DECAYED_RATE_SHARE for end in ends):  # the decay has already averaged the weights
        text = "Repeat the best settings with several seeds, or use more validation data."
    return Advise(text=text), "unknown: the learning rate decays; evaluate on training data as well"


def _advise_more_examples(times: float, examples: str = "validation examples") -> Advise:
    """Return the advice to multiply the number of examples in each evaluation by `times`. If this number is impractical, return
    other advice."""
    if times > MAX_VALIDATION_SET_GROWTH:
        instead = "Repeat the best settings with several seeds, or compare them by a metric with less noise"
        return Advise(text=f"{instead}: no realistic number of {examples} separates them.")
    number = max(math.ceil(times), 2)
    text = f"Evaluate on about {number} times as many {examples}, or compare the means of {number} evaluations."
    return Advise(text=text, new_scores=True)
