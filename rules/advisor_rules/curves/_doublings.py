"""Compares trials that differ only in the length of training; such pairs show the effect of more steps under any schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from advisor.computed.curves import noise
from advisor.model.space import is_training_length
from advisor.model.study import Study, Trial

_MIN_LENGTH_RATIO, _MAX_LENGTH_RATIO = 1.5, 4.0
"""Minimum and maximum ratio of the two lengths of training in a pair of trials."""


@dataclass(frozen=True, slots=True)
class TrialLengthPair:
    """A shorter and a longer trial with the same settings."""

    shorter_trial: Trial
    longer_trial: Trial
    length_ratio: float
    objective_gain: float
    """Improvement of the objective by the longer training."""
    relative_gain: float
    """Improvement as a share of the shorter trial's gain from its first evaluation to its result."""


def find_length_pairs(study: Study) -> list[TrialLengthPair]:
    """Return the pairs of complete trials with equal settings whose planned lengths have a ratio of 1.5 to 4, best pair
    first."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[int, Trial]]] = defaultdict(list)
    for trial in study.ranked():
        curve = study.cost_curve(trial).finite
        if trial.status != "complete" or study.cut_short(trial) or len(curve) < 2 or not _declares_training_length(trial):
            continue
        steps = study.planned_length(trial, int(curve.steps[-1]))
        settings = tuple(sorted((n, str(v)) for n, v in trial.params.items() if not is_training_length(n)))
        groups[settings].append((steps, trial))
    pairs = []
    for members in groups.values():
        ordered = sorted(members, key=lambda m: m[0])
        for (fewer, short), (more, long) in pairwise(ordered):
            if _MIN_LENGTH_RATIO <= more / max(fewer, 1) <= _MAX_LENGTH_RATIO:
                pairs.append(_pair_trials(study, short, long, more / fewer))
    return sorted(pairs, key=lambda p: float(study.costs[p.longer_trial.index]))


def _declares_training_length(trial: Trial) -> bool:
    return math.isfinite(trial.fact("max_train_steps")) or any(is_training_length(name) for name in trial.params)


def _pair_trials(study: Study, short: Trial, long: Trial, ratio: float) -> TrialLengthPair:
    gain = float(study.costs[short.index] - study.costs[long.index])
    first = float(study.cost_curve(short).finite.values[0])
    first_gain = first - float(study.costs[short.index])
    return TrialLengthPair(short, long, ratio, gain, gain / first_gain if first_gain > 0 else math.nan)


def p_value(study: Study, pairs: list[TrialLengthPair]) -> float:
    """Return the one-sided p-value of the hypothesis that longer training gains nothing.

    The p-value is that of a paired t-test; for a single pair, the gain is compared with the noise of results.
    """
    gains = np.array([p.objective_gain for p in pairs])
    sd = noise.noise_between_seeds(study)[0] or noise.noise_between_evaluations(study)
    if len(gains) == 1:
        return float(stats.norm.sf(gains[0] / (math.sqrt(2) * sd))) if sd > 0 else 1.0
    error = max(float(gains.std(ddof=1)), sd) / math.sqrt(len(gains))
    return float(stats.t.sf(gains.mean() / error, len(gains) - 1)) if error > 0 else float(gains.mean() <= 0)
