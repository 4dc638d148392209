from __future__ import annotations

import numpy as np
import pytest
from promise import kept, studies

from advisor.stats import group_effect


def bowl(
    rng: np.random.Generator, count: int, behind: float, optima: tuple[float, ...] = (0.5, 0.5)
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Two or more groups with a bowl each, in units of the standard deviation between seeds; the last one is behind."""
    x, groups = rng.random((count, 2)), np.arange(count) % len(optima)
    away = x - np.stack([np.array(optima)[groups], np.full(count, 0.4)], axis=1)
    costs = 150 * (away**2 @ [1.0, 0.2]) + behind * (groups == len(optima) - 1) + rng.standard_normal(count)
    return groups, list(x.T), costs


def test_a_group_that_is_behind_is_found_with_an_interval_around_the_truth() -> None:
    found, covered = 0, 0
    for seed in range(20):
        effect = group_effect.compare_groups(*_split(bowl(np.random.default_rng(seed), 24, 10.0)))
        middle, low, high = effect.difference_to_leading_group(1, 0.95)
        assert low < middle < high
        found += effect.leading_group == 0 and low > 0
        covered += low <= 10 <= high
    assert found == 20
    assert covered >= 17


def test_the_best_results_count_not_the_averages() -> None:
    """One group is worse on average, as its optimum lies further out, but equally good at its best."""
    rng = np.random.default_rng(1)
    groups, numeric, costs = bowl(rng, 48, 0.0, (0.5, 0.75))
    effect = group_effect.compare_groups(groups, numeric, [], costs)
    low, high = effect.difference_to_leading_group(1 - effect.leading_group, 0.95)[1:]
    assert low <= 0 <= high


def test_a_group_with_an_own_hyperparameter_and_no_hyperparameter_at_all() -> None:
    rng = np.random.default_rng(2)
    groups, numeric, costs = bowl(rng, 24, 10.0)
    own = np.where(groups == 1, rng.random(24), np.nan)
    assert group_effect.compare_groups(groups, [*numeric, own], [], costs).difference_to_leading_group(1, 0.95)[1] > 0
    flat = 5.0 * (groups == 1) + 0.1 * rng.standard_normal(24)
    low, high = group_effect.compare_groups(groups, [], [], flat).difference_to_leading_group(1, 0.95)[1:]
    assert 4 < low < high < 6


def test_the_best_value_is_sought_where_coordinates_come_from_different_settings() -> None:
    x = np.linspace(0, 1, 8)  # on one line, with the best value beside it
    groups, blocks = np.arange(8) % 2, [x[:, None], 1 - x[:, None]]
    places = group_effect._candidate_points(blocks, groups, np.abs(x - 0.5))
    assert places.sum(1).min() < 0.7
    assert (places.min(), places.max()) == (0, 1)


@pytest.mark.parametrize(("large", "small"), [(996, 4), (130, 5), (126, 3)])
def test_a_small_group_in_many_results_is_still_compared(large: int, small: int) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        groups = np.repeat([0, 1], [large, small])
        x = rng.random(large + small)
        costs = 50 * (x - 0.5) ** 2 + 20.0 * groups + rng.standard_normal(large + small)
        effect = group_effect.compare_groups(groups, [x], [], costs)
        assert effect.best_costs.shape[1] == 2
        assert effect.leading_group == 0
        assert effect.difference_to_leading_group(1, 0.95)[0] > 5


@pytest.mark.parametrize(("count", "optima"), [(24, (0.5, 0.5)), (24, (0.4, 0.65)), (36, (0.5, 0.4, 0.6))])
def test_equal_groups_rarely_differ(count: int, optima: tuple[float, ...]) -> None:
    wrong = 0
    for seed in studies(40):
        effect = group_effect.compare_groups(*_split(bowl(np.random.default_rng(seed), count, 0.0, optima)))
        level = 1 - 0.05 / (len(optima) - 1)
        wrong += any(
            effect.difference_to_leading_group(g, level)[1] > 0 for g in range(len(optima)) if g != effect.leading_group
        )
    assert kept(wrong, len(studies(40)))


def test_more_trials_gain_where_the_optimum_lies_between_the_known_settings() -> None:
    at = np.array([(x, y) for x in np.linspace(0, 1, 4) for y in np.linspace(0, 1, 4)])
    columns = [at[:, 0], at[:, 1]]
    between = group_effect.draw_further_results(columns, [], ((at - 0.5) ** 2).sum(axis=1), 100)
    known = group_effect.draw_further_results(columns, [], ((at - 1 / 3) ** 2).sum(axis=1), 100)
    assert between.gains.mean() == pytest.approx(2 * (1 / 6) ** 2, rel=0.4)
    assert known.gains.mean() < 0.01
    assert np.median(between.noise_sd) < 0.01
    assert abs(known.best_results.mean()) < 0.02


def test_the_gain_of_more_trials_with_choices_missing_values_and_failures() -> None:
    rng = np.random.default_rng(0)
    x, kind = rng.random(12), rng.integers(2, size=12).astype(float)
    own = np.where(kind == 1, rng.random(12), np.nan)
    costs = np.where(x > 0.8, np.nan, (x - 0.5) ** 2 + 0.1 * kind)
    more = group_effect.draw_further_results([x, own], [kind], costs, 1000)
    assert more.gains.shape == more.noise_sd.shape == more.best_results.shape
    assert np.isfinite(more.gains).all()
    assert more.gains.min() >= 0


def _split(
    made: tuple[np.ndarray, list[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], np.ndarray]:
    groups, numeric, costs = made
    return groups, numeric, [], costs
