"""The data of isolation plots: the best setting at each value of one hyperparameter, whatever the others are. Repeats of a
setting count as one observation, their median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import settings
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.model.words import replace_surrogates, setting
from advisor.report.plot_data.model import IsolationPlot, IsolationSlice
from advisor.stats.best_of import p_value_of_late_group, quantiles_of_best, rank_of_best

MAX_RANGE_SLICES = 10
MIN_SETTINGS_IN_SLICE = 4
"""Minimum number of settings per slice of a numeric range. If a hyperparameter has few distinct values, each value is one slice."""

_QUANTILE_LEVELS = np.array([0.05, 0.5, 0.95])
_MEDIAN_QUANTILE = 0.5


@dataclass(frozen=True)
class _TriedSetting:
    trials: tuple[Trial, ...]
    cost: float
    """Lower median cost of the setting's trials, or NaN if at least half of these trials failed."""


def isolation_plots(study: Study) -> tuple[IsolationPlot, ...]:
    """Return the isolation plot's data for every hyperparameter with at least two slices, scientific hyperparameters first."""
    tried = settings.read_settings(study)
    costs = np.where(study.comparable, study.costs, np.nan)
    median_costs = settings.median_cost_per_setting(study).tolist()
    tried_settings = [_TriedSetting(group, cost) for group, cost in zip(tried.trials, median_costs, strict=True)]
    names = (n for n in study.searched if n not in tried.unexamined_positions)
    sorted_names = sorted(names, key=lambda n: study.searched[n].role != "scientific")
    plots = [i for n in sorted_names if (i := _make_isolation_plot(study, costs, n, tried_settings)) is not None]
    return tuple(i.model_copy(update={"p": min(i.p * len(plots), 1.0)}) for i in plots)


def _make_isolation_plot(study: Study, costs: FloatArray, name: str, pooled: Sequence[_TriedSetting]) -> IsolationPlot | None:
    members = [s for s in pooled if name in s.trials[0].params]
    groups = _group_by_number(study, name, members) if study.searched[name].numeric else _group_by_choice(name, members)
    if len(groups) < 2:
        return None
    draw_count = min(len(g) for g in groups)
    median_bests = [float(quantiles_of_best(_setting_costs(g), draw_count, np.array([_MEDIAN_QUANTILE]))[0]) for g in groups]
    ranking = sorted((v, i) for i, v in enumerate(median_bests) if math.isfinite(v))
    extremes = [groups[ranking[end][1]] for end in (0, -1)] if len(ranking) > 1 else []
    return IsolationPlot(
        parameter=replace_surrogates(name),
        draw_count=draw_count,
        repeats=any(len(s.trials) > 1 for s in members),
        slices=tuple(_make_isolation_slice(study, costs, name, g, draw_count) for g in groups),
        p=_worst_slice_p_value([groups[i] for _, i in ranking], draw_count, ranking[-1][0]) if ranking else 1.0,
        confounders=_separated_parameters(study, name, *extremes) if extremes else (),
    )


def _setting_costs(group: Sequence[_TriedSetting]) -> FloatArray:
    return np.array([s.cost for s in group])


def _worst_slice_p_value(groups: Sequence[Sequence[_TriedSetting]], draw_count: int, worst: float) -> float:
    """Return the probability that some slice is as bad as `worst`, a median best cost, if settings are permuted."""
    sizes = [len(g) for g in groups]
    better_count = sum(int((_setting_costs(g) < worst).sum()) for g in groups)
    return p_value_of_late_group(sizes, [rank_of_best(size, draw_count, _MEDIAN_QUANTILE) for size in sizes], better_count)


def _separated_parameters(
    study: Study, name: str, best: Sequence[_TriedSetting], worst: Sequence[_TriedSetting]
) -> tuple[str, ...]:
    """Return the other hyperparameters whose values in the best and worst slice do not overlap: possible confounders."""
    confounders = []
    for other, parameter in study.searched.items():
        u, v = (study.positions(other, [s.trials[0] for s in group]) for group in (best, worst))
        u, v = u[np.isfinite(u)], v[np.isfinite(v)]
        if other == name or not (len(u) and len(v)):
            continue
        if u.max() < v.min() or v.max() < u.min() if parameter.numeric else not set(u) & set(v):
            confounders.append(replace_surrogates(other))
    return tuple(confounders)


def _group_by_number(study: Study, name: str, pooled: list[_TriedSetting]) -> list[list[_TriedSetting]]:
    positions = study.positions(name, [s.trials[0] for s in pooled])
    sorted_indices = [i for i in np.argsort(positions, kind="stable").tolist() if math.isfinite(positions[i])]
    values, value_starts = np.unique(positions[sorted_indices], return_index=True)
    if len(values) <= MAX_RANGE_SLICES:
        index_groups = np.split(np.array(sorted_indices, dtype=np.int64), value_starts[1:])
    else:
        group_count = min(MAX_RANGE_SLICES, len(sorted_indices) // MIN_SETTINGS_IN_SLICE) or 1
        index_groups = np.array_split(np.array(sorted_indices, dtype=np.int64), group_count)
    return [[pooled[i] for i in part] for part in index_groups if len(part)]


def _group_by_choice(name: str, pooled: list[_TriedSetting]) -> list[list[_TriedSetting]]:
    groups: dict[str, list[_TriedSetting]] = {}
    for tried in pooled:
        groups.setdefault(setting(tried.trials[0].params[name]), []).append(tried)
    return [groups[label] for label in sorted(groups)]


def _make_isolation_slice(
    study: Study, costs: FloatArray, name: str, group: Sequence[_TriedSetting], draw_count: int
) -> IsolationSlice:
    trials = [t for s in group for t in s.trials]
    best, values = next(iter(study.ranked(trials)), None), [s.trials[0].params[name] for s in group]
    slice_ends = [values[0], values[-1]] if study.searched[name].numeric else []
    low, high = (float(v) for v in slice_ends) if slice_ends else (None, None)
    quantiles = quantiles_of_best(_setting_costs(group), draw_count, _QUANTILE_LEVELS)
    five, half, ninety_five = (study.objective_value(float(c)) if math.isfinite(c) else None for c in quantiles)
    return IsolationSlice(
        label=replace_surrogates(setting(values[0]) if low == high else f"{setting(low, 3)} to {setting(high, 3)}"),
        low=low,
        high=high,
        trials=len(trials),
        best=None if best is None else replace_surrogates(best.id),
        value=None if best is None else study.objective_value(float(costs[best.index])),
        quantiles=(five, half, ninety_five),
    )
