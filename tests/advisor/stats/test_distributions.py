"""Our thin distributions are those of `scipy.stats`."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import signal, stats

from advisor.stats import distributions as ours
from advisor.stats.curve import smoothed

RNG = np.random.default_rng(5)
SHARES = np.array([1e-9, 1e-4, 0.025, 0.3, 0.5, 0.77, 0.95, 0.9999])
X = np.array([-40.0, -6.0, -1.3, 0.0, 1e-3, 0.7, 2.0, 9.0, 300.0])
FREEDOMS = (0.7, 1.0, 3.0, 11.5, 200.0, 1e7, np.inf)


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_continuous_distributions(freedom):
    same(ours.t.cdf(X, freedom), stats.t.cdf(X, freedom))
    same(ours.t.sf(X, freedom), stats.t.sf(X, freedom))
    same(ours.t.ppf(SHARES, freedom), stats.t.ppf(SHARES, freedom))
    same(ours.t.isf(SHARES, freedom), stats.t.isf(SHARES, freedom))
    if np.isfinite(freedom):
        above = X[3:]
        same(ours.chi2.sf(above, freedom), stats.chi2.sf(above, freedom))
        same(ours.chi2.ppf(SHARES, freedom), stats.chi2.ppf(SHARES, freedom))
        same(ours.f.sf(above, freedom, 7.0), stats.f.sf(above, freedom, 7.0))
        same(ours.f.ppf(SHARES, freedom, 7.0), stats.f.ppf(SHARES, freedom, 7.0))
        same(ours.gamma.cdf(above, freedom), stats.gamma.cdf(above, freedom))
        same(ours.gamma.ppf(SHARES, freedom), stats.gamma.ppf(SHARES, freedom))
        same(ours.beta.sf(SHARES, freedom, 2.5), stats.beta.sf(SHARES, freedom, 2.5))


def test_the_normal_distribution():
    for name, at in (("cdf", X), ("sf", X), ("ppf", SHARES), ("isf", SHARES)):
        same(getattr(ours.norm, name)(at), getattr(stats.norm, name)(at))


@pytest.mark.parametrize("n", [1, 2, 17, 400])
@pytest.mark.parametrize("p", [0.0, 1e-6, 0.05, 0.5, 0.93, 1.0])
def test_the_binomial_distribution(n, p):
    for k in (-1, -0.5, 0, 0.5, 1, n // 3, n - 1, n, n + 3):
        same(ours.binom.cdf(k, n, p), stats.binom.cdf(k, n, p))
        same(ours.binom.sf(k, n, p), stats.binom.sf(k, n, p))


@pytest.mark.parametrize(("n", "a", "b"), [(1, 0.5, 0.5), (20, 3.5, 17.5), (300, 0.5, 40.5)])
def test_the_beta_binomial_distribution(n, a, b):
    np.testing.assert_allclose(ours.betabinom.cdf(n, a, b), stats.betabinom(n, a, b).cdf(np.arange(n + 1)), rtol=1e-11)


@pytest.mark.parametrize("k", [2, 3, 6, 20])
def test_the_range_of_normal_values(k):
    for x in (0.0, 0.4, 2.0, 3.7, 6.0):
        assert ours.normal_range.sf(x, k) == pytest.approx(stats.studentized_range.sf(x, k, np.inf), abs=1e-9)
    for q in (0.3, 0.05, 0.01):
        assert ours.normal_range.isf(q, k) == pytest.approx(stats.studentized_range.isf(q, k, np.inf), abs=1e-7)


@pytest.mark.parametrize("n", [2, 5, 9, 40, 300])
def test_ranks_and_tests(n):
    a = RNG.normal(size=n).round(1)
    b = 0.3 * a + RNG.normal(size=n)
    a[0] = np.inf
    same(ours.rankdata(a), stats.rankdata(a))
    p = RNG.random(n) ** 4
    same(ours.false_discovery_control(p), stats.false_discovery_control(p))
    counts = RNG.integers(1, 40, size=n)
    same(ours.p_of_even_counts(counts), stats.chisquare(counts).pvalue)
    if n > 2:
        for side in ("greater", "less"):
            same(ours.p_of_ranks(a, b, side), stats.spearmanr(a, b, alternative=side).pvalue)
    u = RNG.random(n) ** RNG.uniform(0.5, 2)
    exact = stats.kstest(u, "uniform").pvalue
    assert ours.p_of_uniform(u) == pytest.approx(exact, abs=2e-5 if exact <= 0.1 else 1.0)
    assert (ours.p_of_uniform(u) <= 0.1) == (exact <= 0.1)


def test_identical_and_opposite_ranks():
    up = np.arange(12.0)
    for other in (up, -up):
        for side in ("greater", "less"):
            same(ours.p_of_ranks(up, other, side), stats.spearmanr(up, other, alternative=side).pvalue)


@pytest.mark.parametrize(("n", "window"), [(9, 9), (20, 9), (50, 5), (31, 15)])
def test_smoothing_is_that_of_savitzky_and_golay(n, window):
    y = RNG.normal(size=n).cumsum()
    np.testing.assert_allclose(smoothed(y, window), signal.savgol_filter(y, window, 2), rtol=1e-11, atol=1e-12)


def test_judging_imports_no_scipy_stats():
    code = "import sys, advisor.analysis, advisor.engine.registry as r; r.load_rules(settings={}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "advisor.stats.boundaries" in loaded
    assert not {"scipy.stats", "scipy.signal", "mlflow", "pandas"} & set(loaded)
