"""Evidence for a gain that stays valid however often one looks, and however many candidates one tries. Lower costs are better.

**One candidate, any number of looks.** The runs y of a setting are normal around its mean, with a deviation of its own, drawn
around the noise floor s (the pooled deviation of all repeats, with d degrees of freedom: sigma^2 ~ d s^2 / chi^2_d). With flat
priors on both means, the gain g (incumbent mean minus candidate mean) has a posterior density h, close to Student's t with
variance V = v_c / n + v_i / m, v = (d s^2 + sum of squares) / (d + n - 1), and Satterthwaite's degrees of freedom. The likelihood
ratio of gain x against gain 0 is h(x) / h(0), because the prior is flat, and

    E = mean of h(x) / h(0) over a half-Cauchy prior on x > 0

is a Bayes factor whose nuisance parameters are integrated out under the same prior on both sides. Such a ratio is an e-process:
under the hypothesis of no gain its mean is at most 1 at every stopping rule, and P(E ever >= 1/a) <= a (Ville's inequality). Where
E exceeds 1, it grows with the observed gain, so a negative true gain crosses 1/a even less often. Mirrored at the smallest
worthwhile gain, the same ratio is the evidence to discard a candidate. Sources: Grünwald, de Heide and Koolen, "Safe testing",
JRSS B 2024; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2023
(arXiv 2310.03722); deviations drawn around a pooled one: Smyth, "Linear models and empirical Bayes methods", 2004.

**Many candidates.** e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024) keeps candidate t if
E >= 1 / (a c_t (R + 1)), where the weights c_t sum to at most 1 and R is the number of other candidates kept. Under arbitrary
dependence between the questions, on average at most the share a of the kept candidates are no better than what they replaced:
a false keep of t adds at most a c_t E to that share, and the mean of E is at most 1. Here each candidate has two e-values, from
all its runs and from its runs after the first, each with half of the weight. The first one counts every setting ever tried, so
that choosing the best-looking setting is allowed; the second one counts only settings that were repeated, because a choice by
first runs does not bias later runs.

What is assumed: normal runs, drawn independently, and deviations that scatter around the floor with at most `MAX_FREEDOM` degrees
of freedom. Two steps are approximate: Student's t for the difference of two such means, and a floor that is itself estimated (its
degrees of freedom replace d if they are fewer). With so few degrees of freedom, one extreme run is weak evidence, and a candidate
with fewer than `MIN_RUNS` runs is never kept. Both protect against heavy tails; `benchmarks/quality/gate.py` measures how well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from advisor.model.space import FloatArray
from advisor.stats.difference import Difference

HORIZON = 30
"""Number of candidates that together get half of the weight. Fewer favour single questions, more favour long loops."""
MAX_FREEDOM = 10
"""Maximum degrees of freedom of the noise floor as a prior for one setting: its deviation then lies within about 0.7 to 1.8 of the
floor (95 %). Our choice; deviations of settings differ, and runs have heavier tails than normal ones."""
MIN_RUNS = 2
"""Minimum runs of a candidate that is kept. Our choice: a result that was never repeated may be an accident of any kind."""
_FAR = np.append(0.0, np.geomspace(0.1, 1e7, 25))
"""Edges of cells of the prior on gains, in units of its scale: so wide that even a huge gain has its cell."""
_NEAR = np.linspace(-6, 6, 25)
"""Edges of further cells around the observed gain, in units of its error, where the likelihood changes fast."""
_MAX_LOG = 600.0
MAX_ERRORS = 1e12
"""Maximum half width of an interval, in errors of the gain; beyond it, the interval is infinite."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The noise floor: the deviation between repeats of one setting, pooled over settings."""

    sd: float
    freedom: int
    """Degrees of freedom of `sd`, at least 1."""

    @property
    def prior(self) -> int:
        """Degrees of freedom with which the floor predicts the deviation of one setting."""
        return min(self.freedom, MAX_FREEDOM)


@dataclass(frozen=True, slots=True)
class Sample:
    """The runs of one setting: their number, mean cost and sum of squared deviations."""

    size: int
    mean: float
    squares: float

    @staticmethod
    def of(costs: FloatArray) -> Sample:
        """Return the sample with these costs, shape (n,), n >= 1."""
        return Sample(len(costs), float(np.mean(costs)), float(np.sum((costs - np.mean(costs)) ** 2)))

    def freedom(self, floor: Floor) -> int:
        """Return the degrees of freedom of `variance`."""
        return floor.prior + self.size - 1

    def variance(self, floor: Floor) -> float:
        """Return the variance between runs: the setting's own, moderated by the noise floor."""
        return (floor.prior * floor.sd**2 + self.squares) / self.freedom(floor)

    def with_more(self, runs: int, floor: Floor) -> Sample:
        """Return the expected sample after further runs if the mean and the variance do not change."""
        return Sample(self.size + runs, self.mean, self.squares + runs * self.variance(floor))


def lead(candidate: Sample, incumbent: Sample, floor: Floor) -> Difference:
    """Return the candidate's gain over the incumbent with the error that the noise floor and both samples give it."""
    parts = [(s.variance(floor) / s.size, s.freedom(floor)) for s in (candidate, incumbent)]
    variance = sum(v for v, _ in parts)
    freedom = 1 / sum((v / variance) ** 2 / f for v, f in parts)
    gain, error = incumbent.mean - candidate.mean, math.sqrt(variance)
    sd = math.sqrt((candidate.variance(floor) + incumbent.variance(floor)) / 2)
    return Difference(gain, sd, error, freedom, float(2 * special.stdtr(freedom, -abs(gain) / error)))


def e_value(gain: float, error: float, freedom: float, scale: float) -> float:
    """Return the evidence that the true gain is positive; see the module's docstring. scale: of the half-Cauchy prior on it."""

    def log_density(distance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # the density of an infinite distance is 0
            return np.asarray(-(freedom + 1) / 2 * np.log1p((distance / error) ** 2 / freedom), dtype=np.float64)

    edges = np.sort(np.maximum(np.concatenate([scale * _FAR, gain + error * _NEAR]), 0.0))
    weights = np.diff(np.arctan(edges / scale)) * 2 / np.pi
    middles = ((edges[1:] + edges[:-1]) / 2)[weights > 0]
    ratios = np.log(weights[weights > 0]) + log_density(gain - middles) - log_density(np.array([gain]))
    top = float(np.max(ratios))
    return math.exp(min(top + math.log(float(np.sum(np.exp(ratios - top)))), _MAX_LOG))


def half_width(error: float, freedom: float, scale: float, level: float) -> float:
    """Return the distance from an observed gain within which the true gain lies at every look at once, with this probability.

    It is infinite if `MAX_ERRORS` errors are not enough, which happens if the scale of the prior is far from the error.
    """
    limit = 2 / (1 - level)
    low, high, scale = 0.0, 1.0, scale / error
    while e_value(high, 1.0, freedom, scale) < limit:
        low, high = high, 2 * high
        if high > MAX_ERRORS:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if e_value(middle, 1.0, freedom, scale) < limit else (low, middle)
    return error * high


def weight(number: int) -> float:
    """Return the weight c_t of candidate number t = 1, 2, ...; all weights sum to 1."""
    return HORIZON / ((number + HORIZON - 1) * (number + HORIZON))


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of one question: it is decided once a level times its evidence reaches 1."""

    every: float
    """Level of the evidence from all runs of the candidate."""
    fresh: float
    """Level of the evidence from its runs after the first."""
    discard: float
    """Probability of discarding a candidate with a worthwhile gain, over all looks."""

    @staticmethod
    def in_loop(number: int, repeat: int, kept: int, *, error: float, miss: float) -> Levels:
        """Return the levels of candidate `number` of a loop, the `repeat`-th one that was repeated; kept: others kept so far."""
        half = error * (kept + 1) / 2
        return Levels(half * weight(number), half * weight(repeat), miss)

    @staticmethod
    def alone(*, error: float, miss: float) -> Levels:
        """Return the levels of a question that is the only one."""
        return Levels(error, 0.0, miss)


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The runs of a candidate and its incumbent."""

    candidate: Sample
    fresh: Sample | None
    """The candidate's runs after its first; None if there is only one run."""
    incumbent: Sample
    floor: Floor
    worthwhile: float
    """Smallest gain worth finding; also the scale of the prior on gains."""
    levels: Levels

    @property
    def lead(self) -> Difference:
        """The gain by all runs."""
        return lead(self.candidate, self.incumbent, self.floor)

    @property
    def keep(self) -> float:
        """Evidence to keep the candidate, as a multiple of what is needed."""
        total = self.levels.every * self._evidence(self.lead)
        if self.fresh is not None and self.levels.fresh > 0:
            total += self.levels.fresh * self._evidence(lead(self.fresh, self.incumbent, self.floor))
        return total

    @property
    def discard(self) -> float:
        """Evidence that the gain is less than the worthwhile one, as a multiple of what is needed."""
        found = self.lead
        return self.levels.discard * e_value(self.worthwhile - found.gain, found.error, found.freedom, self.worthwhile)

    @property
    def decision(self) -> Literal["keep", "discard", "not decided"]:
        """Decision by the evidence alone."""
        if self.keep >= 1 and self.candidate.size >= MIN_RUNS:
            return "keep"
        return "discard" if self.discard >= 1 else "not decided"

    def _evidence(self, found: Difference) -> float:
        return e_value(found.gain, found.error, found.freedom, self.worthwhile)

    def next_run(self, most: int) -> tuple[int, int]:
        """Return (1, 0) if a run of the candidate lowers the error most, (0, 1) for the incumbent, (0, 0) if both have `most`."""
        if self.keep >= 1 and self.candidate.size < MIN_RUNS:
            return 1, 0
        drops = [
            s.variance(self.floor) / (s.size * (s.size + 1)) if s.size < most else 0.0
            for s in (self.candidate, self.incumbent)
        ]
        if max(drops) <= 0:
            return 0, 0
        return (1, 0) if drops[0] >= drops[1] else (0, 1)

    def with_more(self, runs: tuple[int, int]) -> SequentialTest:
        """Return the test as it would be after more runs (of the candidate, of the incumbent) if the gain does not change."""
        fresh = self.fresh.with_more(runs[0], self.floor) if self.fresh is not None else None
        if fresh is None and runs[0]:
            fresh = Sample(1, self.candidate.mean, 0.0).with_more(runs[0] - 1, self.floor)
        return SequentialTest(
            self.candidate.with_more(runs[0], self.floor),
            fresh,
            self.incumbent.with_more(runs[1], self.floor),
            self.floor,
            self.worthwhile,
            self.levels,
        )

    def plan(self, most: int) -> tuple[int, int] | None:
        """Return how few more runs (of the candidate, of the incumbent) decide if the gain does not change; None if `most` of each
        are too few."""
        for runs, test in self._future(most):
            if test.decision != "not decided":
                return runs
        return None

    def _future(self, most: int) -> Iterator[tuple[tuple[int, int], SequentialTest]]:
        test, runs = self, (0, 0)
        while (step := test.next_run(most)) != (0, 0):
            test, runs = test.with_more(step), (runs[0] + step[0], runs[1] + step[1])
            yield runs, test
