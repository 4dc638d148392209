"""Finds hyperparameters whose values a study compares instead of tuning them, and the settings tried with each value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed.space.settings import Settings
from advisor.model import parameter_kinds
from advisor.model.message import Message, Name, Setting, say
from advisor.model.space import FloatArray, HyperparameterValue, IntArray, is_training_length
from advisor.model.study import Study, Trial

MAX_COMPARED_VALUES = 6
"""Maximum number of distinct values of a hyperparameter that a study compares; a hyperparameter with more values is tuned. Our
choice."""


@dataclass(frozen=True)
class ComparedValues:
    """The n settings that have a value of the compared hyperparameter, grouped by this value."""

    name: str
    values: tuple[HyperparameterValue, ...]
    groups: IntArray
    """Index of the compared value of each setting, shape (n,)."""
    costs: FloatArray
    """Cost of each setting, shape (n,), as in `Settings`."""
    numeric_positions: dict[str, FloatArray]
    """Positions of the other searched numeric hyperparameters, shape (n,) each."""
    choice_indices: dict[str, FloatArray]
    """Values of the other searched categorical hyperparameters as indices, shape (n,) each."""
    trials: tuple[tuple[Trial, ...], ...]

    def value_label(self, group: int) -> Message:
        return say("{name} = {value}", name=Name(self.name), value=Setting(self.values[group]))

    def group_size(self, group: int) -> int:
        return int(np.sum(self.groups == group))

    def describe_group(self, group: int) -> tuple[Message, int, list[Trial]]:
        return self.value_label(group), self.group_size(group), self.trials_with_value(group)

    def trials_with_value(self, group: int) -> list[Trial]:
        return [t for i in np.flatnonzero(self.groups == group) for t in self.trials[i]]


def find_compared_values(study: Study, tried: Settings, *, levels: int) -> list[ComparedValues]:
    """Return the compared hyperparameters: categorical ones, switches, and scientific or integer hyperparameters with at most
    `levels` distinct values.

    Some integers count as tuned, not compared: hyperparameters of the optimizer or a regulariser, the batch size, and the
    length of training.
    """
    compared = []
    for name in study.searched:
        if name in tried.unexamined_positions or not _is_parameter_compared(study, tried, name, levels):
            continue
        indices = [i for i, group in enumerate(tried.trials) if name in group[0].params]
        used = [tried.trials[i][0].params[name] for i in indices]
        values = tuple(sorted(set(used), key=lambda v: (str(type(v)), v)))
        compared.append(
            ComparedValues(
                name=name,
                values=values,
                groups=np.array([values.index(v) for v in used], dtype=np.int64),
                costs=tried.costs[indices],
                numeric_positions={n: u[indices] for n, u in tried.numeric.items() if n != name},
                choice_indices={n: u[indices] for n, u in tried.choices.items() if n != name},
                trials=tuple(tried.trials[i] for i in indices),
            )
        )
    return compared


def _is_parameter_compared(study: Study, tried: Settings, name: str, levels: int) -> bool:
    used = {t.params[name] for group in tried.trials for t in group if name in t.params}
    if name in tried.choices:
        return len(used) > 1
    if not 2 <= len(used) <= levels:
        return False
    are_whole = all(isinstance(v, int | float) and float(v).is_integer() for v in used)
    is_tuned = (
        parameter_kinds.belongs_to_optimizer(name)
        or parameter_kinds.is_regulariser(name)
        or parameter_kinds.is_batch_size(name)
        or is_training_length(name)
    )
    return study.searched[name].role == "scientific" or (are_whole and not is_tuned)


def varies(positions: FloatArray) -> bool:
    """Return True if the positions (n,) have several distinct values; NaN counts as missing."""
    return len(np.unique(positions[np.isfinite(positions)])) > 1
