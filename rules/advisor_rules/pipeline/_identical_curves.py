"""Trials whose settings differ and whose curves are the same, bit by bit: what those settings did not change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.space import kinds
from advisor.model.space import is_learning_rate
from advisor.model.study import Curve, Signal, Study, Trial

_RESULTS: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss", "grad_norm")
"""What training brings about, beside the objective; times and learning rates are not."""

Setting: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Twins:
    """Trials of two or more settings with one and the same set of curves."""

    trials: tuple[Trial, ...]
    names: tuple[str, ...]
    """The hyperparameters that differ among them, in the order of the alphabet."""
    settings: int
    moves: int
    """How often the curve that moved most often went to another value."""
    p: float
    """How often chance alone makes so many of the study's settings agree: see `read`."""


@dataclass(frozen=True)
class Identical:
    """All that a study shows of it."""

    judged: tuple[Trial, ...]
    """Trials with a curve that moves."""
    settings: int
    """Distinct settings among them."""
    varied: tuple[str, ...]
    """Hyperparameters that differ among them."""
    twins: tuple[Twins, ...]
    """The largest group first."""
    _settings: Mapping[int, Setting]
    _curves: Mapping[int, bytes]
    """By the index of the trial."""

    @property
    def seeds_shared(self) -> bool:
        """Whether any two settings were trained with the same seed, or with none that was noted."""
        return len({t.seed for t in self.judged}) < self.settings

    def never_matter(self, names: Collection[str]) -> bool:
        """Whether curves are the same wherever settings differ in nothing but these hyperparameters, the seed included."""
        groups: dict[object, dict[Setting, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        for trial in self.judged:
            setting = self._settings[trial.index]
            rest = (trial.seed, tuple(part for part in setting if part[0] not in names))
            groups[rest][setting].add(self._curves[trial.index])
        pairs = [list(chain.from_iterable(g.values())) for g in groups.values() if len(g) > 1]
        return bool(pairs) and all(len(set(curves)) == 1 for curves in pairs)


def read(study: Study, false_alarms: float) -> Identical:
    """Which settings have the same curves, of all that training brings about: objective, losses, gradient norm.

    The chance is that of a coin: two trainings that differ at all are taken to agree in every other value to which their curve
    moves, over the one curve that moves most often, for every way to choose so many settings. Logged digits make it far less.
    """
    curves, moves = {}, {}
    for trial in study.trials:
        if study.ended[trial.index]:
            logged = _results(study, trial)
            often = max((_moves(c) for c in logged), default=0)
            if often:
                moves[trial.index] = often
                curves[trial.index] = b"|".join(
                    part for c in logged for part in (c.steps.tobytes(), c.values.tobytes())
                )
    judged = [t for t in study.trials if t.index in curves]
    settings = {t.index: _setting(study, t) for t in judged}
    groups: dict[bytes, list[Trial]] = defaultdict(list)
    for trial in judged:
        groups[curves[trial.index]].append(trial)
    many = len(set(settings.values()))
    twins = []
    for group in groups.values():
        same = {settings[t.index] for t in group}
        if len(same) > 1:
            often = moves[group[0].index]
            twins.append(Twins(tuple(group), _varied(same), len(same), often, _chance(len(same), many, often)))
    found = sorted((t for t in twins if t.p <= false_alarms), key=lambda t: (-t.settings, t.trials[0].index))
    return Identical(tuple(judged), many, _varied(set(settings.values())), tuple(found), settings, curves)


def copied(group: Twins, varied: Sequence[str]) -> bool:
    """Whether so much differs that no training could fail to show it: a learning rate, or two hyperparameters and all there are."""
    return any(map(is_learning_rate, group.names)) or (len(group.names) > 1 and set(group.names) == set(varied))


def _results(study: Study, trial: Trial) -> list[Curve]:
    """The curves of what the trial brought about, each once; an empty one where it logged none."""
    names = dict.fromkeys([study.spec.objective.metric, *(study.signals[s] for s in _RESULTS if s in study.signals)])
    return [study.metric(trial, name) for name in names]


def _moves(curve: Curve) -> int:
    return int(np.count_nonzero(np.diff(curve.finite.values)))


def _setting(study: Study, trial: Trial) -> Setting:
    """Names and values of what was searched and may change a result."""
    return tuple(part for part in repeats.key(trial) if part[0] in study.searched and not kinds.is_of_machine(part[0]))


def _varied(settings: Collection[Setting]) -> tuple[str, ...]:
    """The hyperparameters whose values differ among settings."""
    common = set[tuple[str, str]].intersection(*map(set, settings)) if settings else set()
    return tuple(sorted({name for setting in settings for name, _ in set(setting) - common}))


def _chance(same: int, settings: int, moves: int) -> float:
    """Expected number of groups of `same` settings, of all, whose curves of so many moves agree as coins do; at most 1."""
    ways = math.lgamma(settings + 1) - math.lgamma(same + 1) - math.lgamma(settings - same + 1)
    return math.exp(min(ways - moves * (same - 1) * math.log(2), 0.0))
