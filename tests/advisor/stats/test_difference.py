import numpy as np
import pytest
from promise import kept, studies
from scipy import stats

from advisor.stats.difference import difference, pooled_deviation, repeats_needed


def test_the_t_of_welch():
    rng = np.random.default_rng(0)
    one, other = rng.normal(0, 1, 6), rng.normal(1, 3, 9)
    found, theirs = difference(one, other), stats.ttest_ind(other, one, equal_var=False)
    assert found.gain / found.error == pytest.approx(theirs.statistic)
    assert found.freedom == pytest.approx(theirs.df)
    low, high = theirs.confidence_interval(0.9)
    assert found.interval(0.9) == pytest.approx((low, high))
    assert found.chance_above(0) == pytest.approx(
        1 - stats.ttest_ind(other, one, equal_var=False, alternative="greater").pvalue
    )


def test_the_exact_p_value_of_perfect_order():
    found = difference(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8]))
    assert found.p_value == pytest.approx(2 / 70)


@pytest.mark.parametrize(("n", "m", "ratio"), [(2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 12, 1), (10, 10, 3), (50, 50, 1)])
def test_keeps_its_level(n, m, ratio):
    rng = np.random.default_rng(n * m)
    found = [difference(rng.normal(0, 1, n), rng.normal(0, ratio, m)).p_value <= 0.05 for _ in studies(200)]
    assert kept(sum(found), len(found))


def test_one_run_takes_the_variance_of_others():
    assert np.isnan(difference(np.array([1.0]), np.array([2.0])).p_value)
    found = difference(np.array([1.0]), np.array([2.0]), pool=(0.1, 8))
    assert found.p_value == pytest.approx(2 * stats.t.sf(1 / (0.1 * 2**0.5), 8))
    assert difference(np.array([1.0]), np.array([2.0, 2.2])).freedom == 1


def test_no_variance_at_all():
    assert difference(np.ones(4), np.ones(4)).p_value == 1
    assert difference(np.ones(4), 2 * np.ones(4)).p_value <= 0.05
    assert difference(np.ones(2), 2 * np.ones(2)).chance_above(0) == 1


def test_pooled_is_within_groups():
    sd, freedom = pooled_deviation([np.array([1.0, 3.0]), np.array([11.0, 13.0]), np.array([5.0])])
    assert (sd, freedom) == (pytest.approx(2**0.5), 2)
    assert pooled_deviation([np.array([1.0]), np.array([2.0])]) is None


@pytest.mark.parametrize("size", [0.7, 1.0, 2.0])
def test_the_repeats_needed_have_the_power_that_was_asked_for(size):
    n = repeats_needed(size, 1.0)
    rng = np.random.default_rng(0)
    gains, base = rng.normal(size, 1, (4000, n)), rng.normal(0, 1, (4000, n))
    power = np.mean(stats.ttest_ind(gains, base, axis=1, alternative="greater").pvalue <= 0.05)
    assert power >= 0.78
    assert repeats_needed(size, 1.0, power=0.9) > n


def test_repeats_needed_at_the_ends():
    assert repeats_needed(100.0, 1.0) == 2
    assert repeats_needed(1.0, 0.0) == 2
    assert repeats_needed(0.0, 1.0, max_repeats=50) == 51
    assert repeats_needed(1e-6, 1.0, max_repeats=50) == 51
