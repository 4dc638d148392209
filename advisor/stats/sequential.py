"""Measures the evidence that a candidate is better than the incumbent setting. The evidence is valid for any number of looks at the
data and of candidates. Lower costs are better.

**One candidate, any number of looks.** The runs y of a setting are normally distributed. Their standard deviation is drawn
around the noise floor s, the pooled deviation of all repeats with d degrees of freedom: sigma^2 ~ d s^2 / chi^2_d. With flat
priors on both mean costs, the gain g (incumbent mean minus candidate mean) has a posterior density h, close to Student's t with
variance V = v_c / n + v_i / m, v = (d s^2 + sum of squares) / (d + n - 1), and Satterthwaite's degrees of freedom. As the prior
is flat, the likelihood ratio of gain x against gain 0 is h(x) / h(0), and

E = mean of h(x) / h(0) over a half-Cauchy prior on x > 0

is a Bayes factor and an e-process: without a gain, its mean is at most 1 for every stopping rule, and P(E ever >= 1/a) <= a
(Ville's inequality). Above 1, E grows with the observed gain, so a negative true gain makes E exceed 1/a even less often.
Mirrored at the smallest worthwhile gain, the same ratio measures the evidence to discard a candidate. Sources: Grünwald, de
Heide and Koolen, "Safe testing", JRSS B 2024; Wang and Ramdas, arXiv 2310.03722; Smyth, "Linear models and empirical Bayes
methods", 2004.

**Many candidates.** e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024) keeps candidate t if E >= 1 /
(a c_t (R + 1)), where the weights c_t sum to at most 1 and R is the number of other candidates kept. On average, at most the
share a of the kept candidates are no better than the settings that they replaced, even if the decisions depend on each other.
Each candidate has two e-values, with half of the weight each. The first e-value comes from all runs of the candidate; its t
counts all settings ever tried, so the best one so far may be selected. The second e-value comes from the runs after the first;
its t counts only repeated settings, because a selection by first runs does not bias later runs.

`MIN_CANDIDATE_RUNS` and `MAX_PRIOR_FREEDOM` protect against heavy tails; `benchmarks/quality/gate.py` measures how well."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from advisor.model.space import FloatArray
from advisor.stats.difference import Difference

HALF_WEIGHT_CANDIDATES = 30
"""Number of first candidates that together get half of the total weight. Higher numbers favour longer loops."""
MAX_PRIOR_FREEDOM = 10
"""Maximum degrees of freedom of the noise floor as a prior of a setting's standard deviation. With 10, the standard deviation lies
within 0.7 to 1.8 times the floor (95 %), because settings differ, and runs have heavier tails than the normal distribution."""
MIN_CANDIDATE_RUNS = 2
"""Minimum number of runs of a candidate to keep it, because a single good result may be luck."""
_PRIOR_EDGES = np.append(0.0, np.geomspace(0.1, 1e7, 25))
"""Edges of the cells over which the prior of the gain is integrated, as multiples of the scale of the prior."""
_EDGES_AROUND_GAIN = np.linspace(-6, 6, 25)
"""Edges of further cells around the observed gain, in standard errors."""
_MAX_LOG_EVIDENCE = 600.0
"""Maximum logarithm of an e-value; higher values would overflow."""
MAX_RELATIVE_HALF_WIDTH = 1e12
"""Maximum half width of an interval, in standard errors; a wider interval counts as infinite."""


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
        """Return the variance between runs: a weighted mean of the variance of these runs and that of the noise floor."""
        return (floor.prior_freedom * floor.sd**2 + self.sum_of_squares) / self.freedom(floor)

    def with_more_runs(self, runs: int, floor: NoiseFloor) -> RunSample:
        """Return the expected sample after `runs` further runs, for an unchanged mean and variance."""
        return RunSample(self.size + runs, self.mean, self.sum_of_squares + runs * self.variance(floor))


def estimate_gain(candidate: RunSample, incumbent: RunSample, floor: NoiseFloor) -> Difference:
    """Return the candidate's gain over the incumbent. Its error comes from the noise floor and the runs of both."""
    variances_and_freedoms = [(s.variance(floor) / s.size, s.freedom(floor)) for s in (candidate, incumbent)]
    variance_of_gain = sum(v for v, _ in variances_and_freedoms)
    degrees_of_freedom = 1 / sum((v / variance_of_gain) ** 2 / f for v, f in variances_and_freedoms)
    gain, error = incumbent.mean - candidate.mean, math.sqrt(variance_of_gain)
    sd = math.sqrt((candidate.variance(floor) + incumbent.variance(floor)) / 2)
    return Difference(gain, sd, error, degrees_of_freedom, float(2 * special.stdtr(degrees_of_freedom, -abs(gain) / error)))


def e_value(gain: float, error: float, freedom: float, scale: float) -> float:
    """Return the evidence E, as defined above, that the true gain is positive. scale: scale of the half-Cauchy prior."""

    def log_density(distance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # the density of an infinite distance is 0
            return np.asarray(-(freedom + 1) / 2 * np.log1p((distance / error) ** 2 / freedom), dtype=np.float64)

    edges = np.sort(np.maximum(np.concatenate([scale * _PRIOR_EDGES, gain + error * _EDGES_AROUND_GAIN]), 0.0))
    weights = np.diff(np.arctan(edges / scale)) * 2 / np.pi
    gains = ((edges[1:] + edges[:-1]) / 2)[weights > 0]
    log_ratios = np.log(weights[weights > 0]) + log_density(gain - gains) - log_density(np.array([gain]))
    largest = float(np.max(log_ratios))
    return math.exp(min(largest + math.log(float(np.sum(np.exp(log_ratios - largest)))), _MAX_LOG_EVIDENCE))


def interval_half_width(error: float, freedom: float, scale: float, level: float) -> float:
    """Return the half width of an interval around the observed gain that contains the true gain with probability `level`, even
    if the interval is computed after every run; inf if the scale of the prior differs too much from the error."""
    min_evidence = 2 / (1 - level)
    low, high, scale = 0.0, 1.0, scale / error
    while e_value(high, 1.0, freedom, scale) < min_evidence:
        low, high = high, 2 * high
        if high > MAX_RELATIVE_HALF_WIDTH:
            return math.inf
    while high - low > 1e-4 * high:
        middle_width = (low + high) / 2
        low, high = (middle_width, high) if e_value(middle_width, 1.0, freedom, scale) < min_evidence else (low, middle_width)
    return error * high


def candidate_weight(number: int) -> float:
    """Return the weight c_t of candidate number t = 1, 2, ...; the weights of all candidates sum to 1."""
    return HALF_WEIGHT_CANDIDATES / ((number + HALF_WEIGHT_CANDIDATES - 1) * (number + HALF_WEIGHT_CANDIDATES))


@dataclass(frozen=True, slots=True)
class SignificanceLevels:
    """Significance levels for the decision on one candidate. A decision is made as soon as a level times its evidence reaches 1."""

    level_for_all_runs: float
    level_for_later_runs: float
    """Level for the evidence from the candidate's runs after its first one."""
    level_for_discard: float
    """Probability, over all looks, of discarding a candidate that has a worthwhile gain."""

    @staticmethod
    def in_loop_levels(number: int, repeat_number: int, number_kept: int, *, error: float, miss: float) -> SignificanceLevels:
        """Return the levels of candidate `number` in a loop over many candidates. repeat_number: number of the candidate among the
        repeated ones. number_kept: number of other candidates kept so far."""
        half_level = error * (number_kept + 1) / 2
        return SignificanceLevels(half_level * candidate_weight(number), half_level * candidate_weight(repeat_number), miss)

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
    """Smallest gain that is worth finding; also the scale of the prior of the gain."""
    levels: SignificanceLevels

    @property
    def estimated_gain(self) -> Difference:
        """Gain of the candidate over the incumbent, from all runs."""
        return estimate_gain(self.candidate, self.incumbent, self.floor)

    @property
    def evidence_to_keep(self) -> float:
        """Evidence for the candidate times its significance levels; 1 or more suffices to keep the candidate."""
        total_evidence = self.levels.level_for_all_runs * self._evidence_for_gain(self.estimated_gain)
        if self.later_runs is not None and self.levels.level_for_later_runs > 0:
            gain = estimate_gain(self.later_runs, self.incumbent, self.floor)
            total_evidence += self.levels.level_for_later_runs * self._evidence_for_gain(gain)
        return total_evidence

    @property
    def evidence_to_discard(self) -> float:
        """Evidence that the gain is below the smallest worthwhile gain, times its significance level; 1 or more suffices."""
        gain, smallest = self.estimated_gain, self.min_worthwhile_gain
        return self.levels.level_for_discard * e_value(smallest - gain.gain, gain.error, gain.freedom, smallest)

    @property
    def decision(self) -> Literal["keep", "discard", "not decided"]:
        """Decision that the evidence implies; the cost of runs is ignored."""
        if self.evidence_to_keep >= 1 and self.candidate.size >= MIN_CANDIDATE_RUNS:
            return "keep"
        return "discard" if self.evidence_to_discard >= 1 else "not decided"

    def _evidence_for_gain(self, gain: Difference) -> float:
        return e_value(gain.gain, gain.error, gain.freedom, self.min_worthwhile_gain)

    def next_run(self, max_runs: int) -> tuple[int, int]:
        """Return (1, 0) if a further run of the candidate lowers the standard error most, (0, 1) if a run of the incumbent does,
        (0, 0) if both have `max_runs` runs."""
        if self.evidence_to_keep >= 1 and self.candidate.size < MIN_CANDIDATE_RUNS:
            return 1, 0
        samples = (self.candidate, self.incumbent)
        reductions = [s.variance(self.floor) / (s.size * (s.size + 1)) if s.size < max_runs else 0.0 for s in samples]
        if max(reductions) <= 0:
            return 0, 0
        return (1, 0) if reductions[0] >= reductions[1] else (0, 1)

    def with_more_runs(self, runs: tuple[int, int]) -> SequentialTest:
        """Return the expected test after further runs (of the candidate, of the incumbent), for an unchanged gain."""
        later_runs = self.later_runs.with_more_runs(runs[0], self.floor) if self.later_runs is not None else None
        if later_runs is None and runs[0]:
            later_runs = RunSample(1, self.candidate.mean, 0.0).with_more_runs(runs[0] - 1, self.floor)
        candidate = self.candidate.with_more_runs(runs[0], self.floor)
        incumbent = self.incumbent.with_more_runs(runs[1], self.floor)
        return replace(self, candidate=candidate, later_runs=later_runs, incumbent=incumbent)

    def plan_runs(self, max_runs: int) -> tuple[int, int] | None:
        """Return the smallest number of further runs (of the candidate, of the incumbent) that leads to a decision, for an
        unchanged gain; None if `max_runs` runs of each setting do not suffice."""
        test, runs = self, (0, 0)
        while (step := test.next_run(max_runs)) != (0, 0):
            test, runs = test.with_more_runs(step), (runs[0] + step[0], runs[1] + step[1])
            if test.decision != "not decided":
                return runs
        return None
