"""Trials with different settings and identical curves: these settings had no effect."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np

from advisor.computed.decision import repeats
from advisor.model import parameter_kinds
from advisor.model.space import is_learning_rate
from advisor.model.study import Curve, Signal, Study, Trial

_RESULTS: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss", "grad_norm")
"""Results of training besides the objective."""

Setting: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Twins:
    """Trials of two or more settings with identical curves."""

    trials: tuple[Trial, ...]
    names: tuple[str, ...]
    """The hyperparameters that differ among them, sorted."""
    settings: int
    moves: int
    """Changes of value in the curve that changes most often."""
    p: float
    """Probability that so many of the study's settings agree by chance, see `read_identical`."""


@dataclass(frozen=True)
class IdenticalCurves:
    """The groups of identical curves in a study."""

    judged: tuple[Trial, ...]
    """Trials with a curve that is not constant."""
    settings: int
    """Distinct settings among them."""
    varied: tuple[str, ...]
    """Hyperparameters that differ among them."""
    twins: tuple[Twins, ...]
    """The largest group first."""
    _settings: Mapping[int, Setting]
    _curves: Mapping[int, bytes]
    """By index of the trial."""

    @property
    def seeds_shared(self) -> bool:
        """Whether two settings share a seed, or logged none."""
        return len({t.seed for t in self.judged}) < self.settings

    def never_matter(self, names: Collection[str]) -> bool:
        """Whether all trials that share a seed and differ only in these hyperparameters have identical curves."""
        groups: dict[object, dict[Setting, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        for trial in self.judged:
            setting = self._settings[trial.index]
            rest = (trial.seed, tuple(part for part in setting if part[0] not in names))
            groups[rest][setting].add(self._curves[trial.index])
        pairs = [list(chain.from_iterable(g.values())) for g in groups.values() if len(g) > 1]
        return bool(pairs) and all(len(set(curves)) == 1 for curves in pairs)


def read_identical(study: Study, false_alarms: float) -> IdenticalCurves:
    """The settings with identical results: objective, losses, gradient norm.

    For the p-value, two different trainings agree in each new value of a curve with probability one half, over the curve that
    changes most often, for every way to choose so many settings. With all logged digits the true probability is far lower.
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
    significant = sorted((t for t in twins if t.p <= false_alarms), key=lambda t: (-t.settings, t.trials[0].index))
    return IdenticalCurves(tuple(judged), many, _varied(set(settings.values())), tuple(significant), settings, curves)


def copied(group: Twins, varied: Sequence[str]) -> bool:
    """Whether the settings differ so much that any training shows it: in a learning rate, or in all of several hyperparameters."""
    return any(map(is_learning_rate, group.names)) or (len(group.names) > 1 and set(group.names) == set(varied))


def _results(study: Study, trial: Trial) -> list[Curve]:
    """The result curves of the trial, each once; empty if not logged."""
    names = dict.fromkeys([study.spec.objective.metric, *(study.signals[s] for s in _RESULTS if s in study.signals)])
    return [study.metric(trial, name) for name in names]


def _moves(curve: Curve) -> int:
    return int(np.count_nonzero(np.diff(curve.finite.values)))


def _setting(study: Study, trial: Trial) -> Setting:
    """Names and values of the searched hyperparameters that can change a result."""
    return tuple(
        part for part in repeats.key(trial) if part[0] in study.searched and not parameter_kinds.is_of_machine(part[0])
    )


def _varied(settings: Collection[Setting]) -> tuple[str, ...]:
    """Hyperparameters whose values differ among settings."""
    common = set[tuple[str, str]].intersection(*map(set, settings)) if settings else set()
    return tuple(sorted({name for setting in settings for name, _ in set(setting) - common}))


def _chance(same: int, settings: int, moves: int) -> float:
    """Expected number of groups of `same` settings whose curves agree by chance in all moves; at most 1."""
    ways = math.lgamma(settings + 1) - math.lgamma(same + 1) - math.lgamma(settings - same + 1)
    return math.exp(min(ways - moves * (same - 1) * math.log(2), 0.0))
