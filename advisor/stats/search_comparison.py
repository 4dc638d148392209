"""Compares two hyperparameter searches by their best settings, with the uncertainty from the random choice of settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray

SEED = 0
NUMBER_OF_DRAWS = 2000
_MAX_RANDOM_NUMBERS = 10_000_000
"""Maximum number of random numbers for one search; searches with thousands of settings get fewer draws."""


@dataclass(frozen=True, slots=True)
class SearchComparison:
    """Comparison of two searches by the best costs in random halves of their settings; all halves have the same size."""

    gains: FloatArray
    """Best cost in a half of the other search minus best cost in a half of the first search, shape (draws,)."""
    best_cost_sds: tuple[float, float]
    """Standard deviation of the best cost in a half, for each search. This tends to exceed the standard deviation of the best
    cost between whole searches."""
    half_size: int
    max_chance_above: float
    """Maximum result of `chance_above`: even if two searches are equal, all settings of one may rank ahead by chance."""

    def chance_above(self, level: float = 0.0) -> float:
        """Return the share of the draws in which the gain exceeds `level`; ties count half."""
        return min(float(np.mean(self.gains > level) + np.mean(self.gains == level) / 2), self.max_chance_above)


def compare_searches(one: Sequence[FloatArray], other: Sequence[FloatArray]) -> SearchComparison:
    """Compare two searches by random halves of their settings, without replacement, with one run of each setting.

    one, other: costs of the runs of each setting; lower is better. A search with a single setting contributes it to each half.
    We draw halves because the bootstrap fails for extremes: 63 % of its samples contain the best trial. The cost of the best
    setting is the mean of its other runs, if any, because the run that selected it was probably lucky. In simulations of equal
    searches, `chance_above` exceeds 0.95 in at most 7 % of cases."""
    search_sizes = [len(s) for s in (one, other) if len(s) > 1]
    half_size = max(1, min(search_sizes, default=1) // 2)
    draw_count = max(200, min(NUMBER_OF_DRAWS, _MAX_RANDOM_NUMBERS // max(len(one), len(other), 1)))
    rng = np.random.default_rng(SEED)
    bests_of_one, bests_of_other = (_draw_best_costs(side, half_size, draw_count, rng) for side in (one, other))
    max_chance_above = 1 - 1 / math.comb(sum(search_sizes), search_sizes[0]) if len(search_sizes) == 2 else 1.0
    sds = float(bests_of_one.std()), float(bests_of_other.std())
    return SearchComparison(bests_of_other - bests_of_one, sds, half_size, max_chance_above)


def _draw_best_costs(settings: Sequence[FloatArray], half_size: int, draws: int, rng: np.random.Generator) -> FloatArray:
    count = len(settings)
    run_counts = np.array([len(s) for s in settings])
    cost_table = np.full((count, int(run_counts.max())), np.nan)
    for i, costs in enumerate(settings):
        cost_table[i, : len(costs)] = costs
    half_size = min(half_size, count)
    drawn_settings = rng.random((draws, count)).argpartition(half_size - 1, axis=1)[:, :half_size]
    drawn_runs = (rng.random((draws, half_size)) * run_counts[drawn_settings]).astype(np.int64)
    drawn_costs = cost_table[drawn_settings, drawn_runs]
    rows, best = np.arange(draws), drawn_costs.argmin(axis=1)
    chosen, cost = drawn_settings[rows, best], drawn_costs[rows, best]
    if count == 1:
        return np.asarray(cost, dtype=np.float64)
    others = run_counts[chosen] - 1
    sums = np.array([math.fsum(s) for s in settings])[chosen] - cost
    return np.asarray(np.where(others > 0, sums / np.maximum(others, 1), cost), dtype=np.float64)
