"""Measures the evidence for a gain such that it stays valid for any number of looks and candidates. Lower costs are better.

**One candidate, any number of looks.** The runs y of a setting are normally distributed. Their standard deviation is drawn
around the noise floor s, the pooled deviation of all repeats with d degrees of freedom: sigma^2 ~ d s^2 / chi^2_d. With flat
priors on both mean costs, the gain g (incumbent mean minus candidate mean) has a posterior density h, close to Student's t with
variance V = v_c / n + v_i / m, v = (d s^2 + sum of squares) / (d + n - 1), and Satterthwaite's degrees of freedom. As the prior
is flat, the likelihood ratio of gain x against gain 0 is h(x) / h(0), and

E = mean of h(x) / h(0) over a half-Cauchy prior on x > 0

is a Bayes factor and an e-process: without a gain, its mean is at most 1 at every stopping rule, and P(E ever >= 1/a) <= a
(Ville's inequality). Above 1, E grows with the observed gain, so a negative true gain makes E exceed 1/a even less often.
Mirrored at the smallest worthwhile gain, the same ratio measures the evidence for discarding a candidate. Sources: Grünwald, de
Heide and Koolen, "Safe testing", JRSS B 2024; Wang and Ramdas, arXiv 2310.03722; Smyth, "Linear models and empirical Bayes
methods", 2004.

**Many candidates.** e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024) keeps candidate t if E >= 1 /
(a c_t (R + 1)), where the weights c_t sum to at most 1 and R is the number of other candidates kept. On average, at most the
share a of the kept candidates are no better than the settings that they replaced, even if the decisions depend on each other.
Each candidate has two e-values, with half of the weight each: from all its runs (t counts all settings ever tried, so the best
so far may be selected), and from its runs after the first (t counts only repeated settings, because a selection by first runs
does not bias later runs).

Two steps are approximate: Student's t for a difference of two such means, and the noise floor, whose degrees of freedom replace
d if they are fewer. `MIN_CANDIDATE_RUNS` and `MAX_PRIOR_FREEDOM` protect against heavy tails; `benchmarks/quality/gate.py`
measures how well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from advisor.model.space import FloatArray
from advisor.stats.difference import Difference

HALF_WEIGHT_CANDIDATES = 30
"""Number of first candidates that together get half of the total weight, which is 1. A low number favours loops with few
candidates, and a high number favours long loops."""
MAX_PRIOR_FREEDOM = 10
"""Maximum degrees of freedom of the noise floor as a prior. With 10, a setting's deviation lies within about 0.7 to 1.8 times
the floor (95 %); deviations differ between settings, and runs have heavier tails than the normal distribution."""
MIN_CANDIDATE_RUNS = 2
"""Minimum number of runs of a candidate to keep it, because a single good result may be luck."""
_PRIOR_EDGES = np.append(0.0, np.geomspace(0.1, 1e7, 25))
"""Edges of the cells over which the prior is integrated, relative to its scale."""
_EDGES_AROUND_GAIN = np.linspace(-6, 6, 25)
"""Edges of further cells around the observed gain, in standard errors."""
_MAX_LOG_EVIDENCE = 600.0
"""Maximum logarithm of an e-value; higher values would overflow."""
MAX_RELATIVE_HALF_WIDTH = 1e12
"""Maximum half width of an interval, in standard errors; a wider one counts as infinite."""


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The standard deviation between repeats of one setting, pooled over all settings."""

    sd: float
    freedom: int
    """Degrees of freedom of the pooled standard deviation, at least 1."""

    @property
    def prior_freedom(self) -> int:
        """Degrees of freedom with which the noise floor predicts the deviation of one setting."""
        return min(self.freedom, MAX_PRIOR_FREEDOM)


@dataclass(frozen=True, slots=True)
class RunSample:
    """The runs of one setting: number of runs, mean cost, and sum of squared deviations from the mean."""

    size: int
    mean: float
    sum_of_squares: float

    @staticmethod
    def from_costs(costs: FloatArray) -> RunSample:
        """Return the sample of runs with the given costs, shape (n,), n >= 1."""
        return RunSample(len(costs), float(np.mean(costs)), float(np.sum((costs - np.mean(costs)) ** 2)))

    def freedom(self, floor: NoiseFloor) -> int:
        return floor.prior_freedom + self.size - 1

    def variance(self, floor: NoiseFloor) -> float:
        """Return the variance between runs: a weighted mean of the setting's own and that of the noise floor."""
        return (floor.prior_freedom * floor.sd**2 + self.sum_of_squares) / self.freedom(floor)

    def with_more_runs(self, runs: int, floor: NoiseFloor) -> RunSample:
        """Return the sample after `runs` further runs, if mean and variance do not change."""
        return RunSample(self.size + runs, self.mean, self.sum_of_squares + runs * self.variance(floor))


def lead(candidate: RunSample, incumbent: RunSample, floor: NoiseFloor) -> Difference:
    """Return the candidate's gain over the incumbent, with an error from the noise floor and the runs of both."""
    parts = [(s.variance(floor) / s.size, s.freedom(floor)) for s in (candidate, incumbent)]
    variance = sum(v for v, _ in parts)
    freedom = 1 / sum((v / variance) ** 2 / f for v, f in parts)
    gain, error = incumbent.mean - candidate.mean, math.sqrt(variance)
    sd = math.sqrt((candidate.variance(floor) + incumbent.variance(floor)) / 2)
    return Difference(gain, sd, error, freedom, float(2 * special.stdtr(freedom, -abs(gain) / error)))


def e_value(gain: float, error: float, freedom: float, scale: float) -> float:
    """Return the evidence E of the module's docstring that the true gain is positive. scale: that of the half-Cauchy prior."""

    def log_density(distance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # the density of an infinite distance is 0
            return np.asarray(-(freedom + 1) / 2 * np.log1p((distance / error) ** 2 / freedom), dtype=np.float64)

    edges = np.sort(np.maximum(np.concatenate([scale * _PRIOR_EDGES, gain + error * _EDGES_AROUND_GAIN]), 0.0))
    weights = np.diff(np.arctan(edges / scale)) * 2 / np.pi
    gains = ((edges[1:] + edges[:-1]) / 2)[weights > 0]
    ratios = np.log(weights[weights > 0]) + log_density(gain - gains) - log_density(np.array([gain]))
    largest = float(np.max(ratios))
    return math.exp(min(largest + math.log(float(np.sum(np.exp(ratios - largest)))), _MAX_LOG_EVIDENCE))


def interval_half_width(error: float, freedom: float, scale: float, level: float) -> float:
    """Return the half width of an interval around the observed gain that contains the true gain with probability `level`, even
    if it is computed after every run; inf if the scale of the prior is too far from the error."""
    limit = 2 / (1 - level)
    low, high, scale = 0.0, 1.0, scale / error
    while e_value(high, 1.0, freedom, scale) < limit:
        low, high = high, 2 * high
        if high > MAX_RELATIVE_HALF_WIDTH:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if e_value(middle, 1.0, freedom, scale) < limit else (low, middle)
    return error * high


def candidate_weight(number: int) -> float:
    """Return the weight c_t of candidate t = 1, 2, ...; all weights sum to 1."""
    return HALF_WEIGHT_CANDIDATES / ((number + HALF_WEIGHT_CANDIDATES - 1) * (number + HALF_WEIGHT_CANDIDATES))


@dataclass(frozen=True, slots=True)
class SignificanceLevels:
    """Levels for the decision on one candidate, which is made when one of them times its evidence reaches 1."""

    all_runs: float
    later_runs: float
    """Level for the evidence from the runs after the first."""
    discard: float
    """Probability, over all looks, of discarding a candidate that has a worthwhile gain."""

    @staticmethod
    def in_loop_levels(number: int, repeat_number: int, number_kept: int, *, error: float, miss: float) -> SignificanceLevels:
        """Return the levels of candidate `number` in a loop over many. repeat_number: its position among the repeated
        candidates; number_kept: number of other candidates kept so far."""
        half = error * (number_kept + 1) / 2
        return SignificanceLevels(half * candidate_weight(number), half * candidate_weight(repeat_number), miss)

    @staticmethod
    def single_question_levels(*, error: float, miss: float) -> SignificanceLevels:
        return SignificanceLevels(error, 0.0, miss)


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """A test whether a candidate is better than its incumbent, from the runs of both."""

    candidate: RunSample
    later_runs: RunSample | None
    """Runs of the candidate after its first one, if any."""
    incumbent: RunSample
    floor: NoiseFloor
    min_worthwhile_gain: float
    """Smallest gain that is worth finding, also the scale of the prior on gains."""
    levels: SignificanceLevels

    @property
    def lead(self) -> Difference:
        """Gain of the candidate over the incumbent, from all runs."""
        return lead(self.candidate, self.incumbent, self.floor)

    @property
    def evidence_to_keep(self) -> float:
        """Evidence for keeping the candidate; 1 or more suffices."""
        total = self.levels.all_runs * self._evidence_for_gain(self.lead)
        if self.later_runs is not None and self.levels.later_runs > 0:
            total += self.levels.later_runs * self._evidence_for_gain(lead(self.later_runs, self.incumbent, self.floor))
        return total

    @property
    def evidence_to_discard(self) -> float:
        """Evidence that the gain is below the smallest worthwhile gain; 1 or more suffices to discard."""
        gain = self.lead
        return self.levels.discard * e_value(
            self.min_worthwhile_gain - gain.gain, gain.error, gain.freedom, self.min_worthwhile_gain
        )

    @property
    def decision(self) -> Literal["keep", "discard", "not decided"]:
        """Decision that the evidence alone implies, without regard to the cost of runs."""
        if self.evidence_to_keep >= 1 and self.candidate.size >= MIN_CANDIDATE_RUNS:
            return "keep"
        return "discard" if self.evidence_to_discard >= 1 else "not decided"

    def _evidence_for_gain(self, gain: Difference) -> float:
        return e_value(gain.gain, gain.error, gain.freedom, self.min_worthwhile_gain)

    def next_run(self, max_runs: int) -> tuple[int, int]:
        """Return (1, 0) if a further run of the candidate lowers the error most, (0, 1) for the incumbent, (0, 0) at
        `max_runs`."""
        if self.evidence_to_keep >= 1 and self.candidate.size < MIN_CANDIDATE_RUNS:
            return 1, 0
        drops = [
            s.variance(self.floor) / (s.size * (s.size + 1)) if s.size < max_runs else 0.0
            for s in (self.candidate, self.incumbent)
        ]
        if max(drops) <= 0:
            return 0, 0
        return (1, 0) if drops[0] >= drops[1] else (0, 1)

    def with_more_runs(self, runs: tuple[int, int]) -> SequentialTest:
        """Return the expected test after further runs (of the candidate, of the incumbent), for an unchanged gain."""
        fresh = self.later_runs.with_more_runs(runs[0], self.floor) if self.later_runs is not None else None
        if fresh is None and runs[0]:
            fresh = RunSample(1, self.candidate.mean, 0.0).with_more_runs(runs[0] - 1, self.floor)
        candidate = self.candidate.with_more_runs(runs[0], self.floor)
        incumbent = self.incumbent.with_more_runs(runs[1], self.floor)
        return replace(self, candidate=candidate, later_runs=fresh, incumbent=incumbent)

    def plan_runs(self, max_runs: int) -> tuple[int, int] | None:
        """Return the smallest number of further runs (of the candidate, of the incumbent) that decides the question, for an
        unchanged gain; None if `max_runs` runs of each do not."""
        test, runs = self, (0, 0)
        while (step := test.next_run(max_runs)) != (0, 0):
            test, runs = test.with_more_runs(step), (runs[0] + step[0], runs[1] + step[1])
            if test.decision != "not decided":
                return runs
        return None
