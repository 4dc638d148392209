"""Finds trials of different lengths that were tuned separately, such as short runs followed by long runs in a narrower range.

Longer runs give better results, so a hyperparameter that was changed together with the length seems to matter. Only trials of
the same length show whether the hyperparameter itself matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.parameter_kinds import is_batch_size
from advisor.model.reading import Decision
from advisor.model.space import BoolArray, FloatArray, IntArray, is_training_length
from advisor.model.study import Study, Trial
from advisor.model.words import count, listed

_MIN_LENGTH_RATIO = 1.2
"""Two training lengths count as different if the longer one is at least this multiple of the shorter one. Our choice."""
_MIN_TRIALS_PER_LENGTH = 5
"""Minimum number of trials of each training length."""
_MAX_TRAINING_LENGTHS = 4
"""Maximum number of distinct training lengths that count as tuned separately. A study with more training lengths sampled the
length like a hyperparameter."""
_SIGNIFICANCE_LEVEL = 0.05
"""Significance level, for a whole study, of the test whether trials of different lengths have different hyperparameters."""


@dataclass(frozen=True)
class TunedLengths:
    """Training lengths that a study tuned separately, so that their trials have different hyperparameter values. Rules about
    the search space judge the trials of only one of these lengths."""

    steps_and_trials: tuple[tuple[int, int], ...]
    """(Last step, number of trials) of each training length, shortest first."""
    judged_index: int
    """Index of the training length that rules judge: the one with the most trials, or the longest of several such lengths."""
    is_other_length: BoolArray
    """Mask of the complete trials with any other length than the judged one, shape (number of trials,)."""


@computed
def separately_tuned_lengths(study: Study) -> TunedLengths | None:
    """Return the training lengths that the study tuned separately; None if it did not."""
    trials = [t for t in study.trials if t.status == "complete" and study.comparable[t.index]]
    lengths = np.array([study.cost_curve(t).steps[-1] for t in trials], dtype=np.int64)
    if study.kind == "no-network" or len(trials) < 2 * _MIN_TRIALS_PER_LENGTH or lengths.min() < 1:
        return None
    groups, sizes = _group_by_length(lengths)
    if (
        not 1 < len(sizes) <= _MAX_TRAINING_LENGTHS
        or sizes.min() < _MIN_TRIALS_PER_LENGTH
        or not _do_hyperparameters_differ(study, trials, groups)
    ):
        return None
    judged = int(max(range(len(sizes)), key=lambda g: (sizes[g], g)))
    others = np.zeros(len(study.trials), dtype=np.bool_)
    others[[t.index for t, group in zip(trials, groups, strict=True) if group != judged]] = True
    ends = [int(lengths[groups == g].max()) for g in range(len(sizes))]
    return TunedLengths(tuple(zip(ends, sizes.tolist(), strict=True)), judged, others)


def length_decisions(study: Study) -> tuple[Decision, ...]:
    """If several training lengths were tuned separately, return the decision to judge the search space by trials of only one."""
    found = separately_tuned_lengths(study)
    if found is None:
        return ()
    groups = [f"{count(trials, 'trial')} of {study.length(steps)}" for steps, trials in found.steps_and_trials]
    text = (
        f"Trials of different lengths have different hyperparameters: {listed(groups)}. The checks of the search space judge only "
        f"the {groups[found.judged_index]}."
    )
    return (Decision(topic="parameters", text=text, overrule="--filter selects the trials of another length"),)


def _group_by_length(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Group the trials by training length. Return (group of each trial, shape (trials,), shortest length first; number of
    trials in each group)."""
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order]
    groups = np.empty(len(lengths), dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(ascending[1:] >= _MIN_LENGTH_RATIO * ascending[:-1])])
    return groups, np.bincount(groups)


def _do_hyperparameters_differ(study: Study, trials: Sequence[Trial], groups: IntArray) -> bool:
    """Return True if trials of different lengths differ in a hyperparameter that does not set the length (Kruskal-Wallis test)."""
    names = [n for n in study.searched if not (is_training_length(n) or n in study.lengths or is_batch_size(n))]
    axes = [u for n in names if not _determines_training_length(u := study.positions(n, trials), groups)]
    return any(_kruskal_p_value(u, groups) <= _SIGNIFICANCE_LEVEL / len(axes) for u in axes)


def _determines_training_length(positions: FloatArray, groups: IntArray) -> bool:
    """Return True if each of the hyperparameter's few values occurs with only one training length, as for a number of training
    blocks."""
    values = np.unique(positions)
    return 2 * len(values) <= len(positions) and all(len(set(groups[positions == v].tolist())) == 1 for v in values)


def _kruskal_p_value(positions: FloatArray, groups: IntArray) -> float:
    from scipy.stats import kruskal  # scipy.stats loads slowly and is rarely needed here

    parts = [part[np.isfinite(part)] for part in (positions[groups == g] for g in range(int(groups.max()) + 1))]
    parts = [part for part in parts if len(part) >= _MIN_TRIALS_PER_LENGTH]
    if len(parts) < 2 or np.ptp(np.concatenate(parts)) == 0:
        return 1.0
    return float(kruskal(*parts).pvalue)
