"""Analyses studies of several model sizes together. The analysis tests whether the best learning rate is the same at all sizes,
and predicts the best learning rate for the next size.

Each model size has a sweep over the learning rate. `advisor.stats.optimum` estimates the best learning rate and the best
objective value of each size, with their uncertainty; `advisor.stats.extrapolation` extrapolates both to another size. Other
hyperparameters that vary within a model size count as noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.computed.space import failures
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.prediction import round_significant
from advisor.model.space import FloatArray, as_number, is_learning_rate
from advisor.model.study import Study, Trial
from advisor.model.words import clean, count, listed
from advisor.stats.extrapolation import Trend, cost_trend, learning_rate_trend
from advisor.stats.optimum import Optimum, estimate_optima

MODEL_SIZE_FACT = "model_parameters"
"""Name of the logged fact with a trial's number of trainable parameters; our training hook logs it
(`advisor.contract.TAG_MODEL_PARAMETERS`)."""
MIN_RATES_PER_SIZE = 4
"""Minimum number of different learning rates with a result per model size. Fewer do not show which is best."""
MIN_SIZES_FOR_VALUE = 3
"""Minimum number of model sizes to predict an objective value; two sizes do not show how fast improvements shrink."""
INTERVAL_COVERAGE = 0.9
"""Probability that the stated intervals of best learning rates, best objective values and predictions contain the true value."""
TRANSFER_TEST_LEVEL = 0.05
"""Significance level of the test whether the best learning rate changes with the model size."""
MAX_EQUAL_RATE_RATIO = 2.0
"""Maximum ratio of two best learning rates that count as equal; sweeps usually try rates a factor of 2 apart."""
MAX_SWEEP_END_PROBABILITY = 0.1
"""Maximum probability that the best learning rate lies at an end of the sweep. Above it, the best rate counts as unknown."""
N_NEW_SEEDS = 2
"""Number of new seeds for each repeated learning rate. One seed per rate shows no noise level."""
N_REPEATED_RATES = 5
"""Number of learning rates to repeat per model size: the best rate and its neighbours."""

SweepEnd = Literal["low", "high"]
RateTransfer = Literal["stays", "moves", "cannot be told"]
PredictionResult = Literal["kept", "not kept", "cannot be told"]


class Estimate(FrozenModel):
    """An estimated quantity: its median and an interval."""

    value: float
    """Median of the estimated distribution of the quantity."""
    low: float
    high: float


class SizeResult(FrozenModel):
    """Results of the learning-rate sweep at one model size."""

    size: float
    trials: int
    """Number of trials that have a result at full training length."""
    rate: Estimate
    value: Estimate
    """Best value of the objective, estimated without the noise of a single run."""
    open: SweepEnd | None = None
    """End of the sweep beyond which the best learning rate may lie, or None if the best rate lies inside the sweep."""


class FurtherRuns(FrozenModel):
    """Further runs to do at one model size."""

    size: float
    rates: tuple[float, ...]
    """Learning rates of the further runs."""
    seeds: int
    """Number of new seeds for each learning rate in `rates`."""


class SizePrediction(FrozenModel):
    """The prediction for one model size, computed from the results at other model sizes."""

    size: float
    rate: Estimate | None
    """Predicted best learning rate, or None if the best learning rate of some size may lie beyond the sweep."""
    value: Estimate | None
    """Predicted best objective value, or None if there are fewer than `MIN_SIZES_FOR_VALUE` model sizes."""


class Ladder(FrozenModel):
    """The results of studies with several model sizes."""

    metric: str
    direction: Literal["minimize", "maximize"]
    rate: str
    """Name of the learning rate that the studies sweep."""
    size: str
    """Name of the hyperparameter that measures the model size, or "parameters" for the number of trainable parameters."""
    rungs: tuple[SizeResult, ...]
    """Results of each model size, smallest size first."""
    factor: Estimate
    """Ratio of the best learning rates of the largest and the smallest model size, with a 95 % interval."""
    transfer: RateTransfer
    next: SizePrediction
    last: SizePrediction | None
    """Prediction for the largest model size from the results at smaller sizes, or None if there are only two sizes."""
    last_rate: PredictionResult = "cannot be told"
    """Judgement of whether the best learning rate of the largest model size confirms the prediction `last`."""
    last_value: PredictionResult = "cannot be told"
    runs: tuple[FurtherRuns, ...]
    """Further runs that help to show whether the best learning rate changes with the model size; empty if that is known."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LearningRateSweep:
    """The study and trials of one model size."""

    size: float
    study: Study
    trials: tuple[Trial, ...]
    """Trials that have a result at full training length."""
    failed: tuple[Trial, ...]


def read_ladder(studies: Sequence[Study], size: str | None = None, next_size: float | None = None) -> Ladder:
    """Analyse studies of several model sizes together. size: hyperparameter that measures the model size; None for the number
    of trainable parameters. next_size: model size to predict; None for the largest size times the ratio of the two largest
    sizes. Raises AdvisorError if fewer than two sizes have enough learning rates, or if the studies do not match."""
    objective = studies[0].spec.objective
    if any(s.spec.objective != objective for s in studies):
        raise AdvisorError("the studies differ in their objective; pass --objective and --direction")
    rate = _learning_rate_name(studies)
    groups = _find_sweeps(studies, rate, size)
    sweeps = [s for s in groups if _count_learning_rates(s, rate) >= MIN_RATES_PER_SIZE]
    few_rates = [f"{s.size:,.10g} ({_count_learning_rates(s, rate)})" for s in groups if s not in sweeps]
    if len(sweeps) < 2:
        too_few = f"; too few rates with a result at {listed(few_rates, 6)}" if few_rates else ""
        raise AdvisorError(f"a ladder needs two model sizes with at least {MIN_RATES_PER_SIZE} learning rates each{too_few}")
    if next_size is not None and next_size <= sweeps[-1].size:
        raise AdvisorError(f"--next must exceed the largest size of the ladder, {sweeps[-1].size:,.10g}")
    new_size = next_size or sweeps[-1].size ** 2 / sweeps[-2].size
    notes = _ladder_notes(sweeps, rate, size)
    if few_rates:
        reason = f"fewer than {MIN_RATES_PER_SIZE} of their learning rates have a result"
        notes.insert(0, f"Model sizes left out, because {reason}: {listed(few_rates, 6)}.")
    return _LadderAnalysis(sweeps, rate).build_ladder(size or "parameters", new_size, notes)


class _LadderAnalysis:
    def __init__(self, sweeps: Sequence[LearningRateSweep], rate: str) -> None:
        self.sweeps, self.rate, self.study = sweeps, rate, sweeps[-1].study
        self.points = [_rates_and_costs(s, rate) for s in sweeps]
        self.optima = estimate_optima(self.points)
        self.ends = [_find_open_sweep_end(*pair, rate) for pair in zip(sweeps, self.optima, strict=True)]

    def build_ladder(self, size: str, following: float, notes: Sequence[str]) -> Ladder:
        rates, _ = self._fit_trends(self.optima, following)
        change = rates.values_at_known_sizes[:, -1] - rates.values_at_known_sizes[:, 0]
        factor = _median_and_interval(np.exp(change), 1 - TRANSFER_TEST_LEVEL)
        transfer: RateTransfer = "cannot be told"
        if not any(self.ends) and factor.low > 1 / MAX_EQUAL_RATE_RATIO and factor.high < MAX_EQUAL_RATE_RATIO:
            transfer = "stays"
        elif not any(self.ends) and (factor.low > 1 or factor.high < 1):
            transfer = "moves"
        sizes = [s.size for s in self.sweeps]
        last, own = None, self._size_result(len(self.sweeps) - 1)
        if len(self.sweeps) > 2:
            last = self._predict_size(estimate_optima(self.points[:-1]), own.size)
        last_rate, last_value = (None, None) if last is None else (last.rate, last.value)
        objective = self.study.spec.objective
        return Ladder(
            metric=objective.metric,
            direction=objective.direction,
            rate=self.rate,
            size=size,
            rungs=tuple(map(self._size_result, range(len(self.sweeps)))),
            factor=factor,
            transfer=transfer,
            next=self._predict_size(self.optima, following),
            last=last,
            last_rate=_judge_prediction(last_rate, None if own.open else own.rate),
            last_value=_judge_prediction(last_value, own.value),
            runs=propose_further_runs(sizes, self.points, self.ends) if transfer == "cannot be told" else (),
            notes=tuple(notes),
        )

    def _size_result(self, at: int) -> SizeResult:
        sweep, optimum = self.sweeps[at], self.optima[at]
        rate = _median_and_interval(np.exp(optimum.positions), INTERVAL_COVERAGE)
        value = self._objective_estimate(optimum.costs)
        return SizeResult(size=sweep.size, trials=len(sweep.trials), rate=rate, value=value, open=self.ends[at])

    def _objective_estimate(self, costs: FloatArray) -> Estimate:
        return _median_and_interval(costs if self.study.minimize else -costs, INTERVAL_COVERAGE)

    def _fit_trends(self, known_sizes: Sequence[Optimum], new: float) -> tuple[Trend, Trend | None]:
        sizes = np.log([s.size for s in self.sweeps[: len(known_sizes)]])
        rates = learning_rate_trend(sizes, *_mean_and_variance([o.positions for o in known_sizes]), math.log(new))
        if len(known_sizes) < MIN_SIZES_FOR_VALUE:
            return rates, None
        return rates, cost_trend(sizes, *_mean_and_variance([o.costs for o in known_sizes]), math.log(new))

    def _predict_size(self, known_sizes: Sequence[Optimum], new: float) -> SizePrediction:
        rates, costs = self._fit_trends(known_sizes, new)
        is_rate_unknown = any(self.ends[: len(known_sizes)])
        rate = None if is_rate_unknown else _median_and_interval(np.exp(rates.values_at_new_size), INTERVAL_COVERAGE)
        value = None if costs is None else self._objective_estimate(costs.values_at_new_size)
        return SizePrediction(size=new, rate=rate, value=value)


def _judge_prediction(predicted: Estimate | None, largest_size: Estimate | None) -> PredictionResult:
    if predicted is None or largest_size is None:
        return "cannot be told"
    if predicted.low <= largest_size.value <= predicted.high:
        return "kept"
    return "not kept" if largest_size.high < predicted.low or largest_size.low > predicted.high else "cannot be told"


def _mean_and_variance(draws: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    return np.array([d.mean() for d in draws]), np.array([d.var() for d in draws])


def _median_and_interval(draws: FloatArray, coverage: float) -> Estimate:
    low, value, high = np.quantile(draws, [(1 - coverage) / 2, 0.5, (1 + coverage) / 2])
    return Estimate(value=float(value), low=float(low), high=float(high))


def _learning_rate_name(studies: Sequence[Study]) -> str:
    names = [{n for n, p in s.searched.items() if is_learning_rate(n) and p.numeric} for s in studies]
    shared = set.intersection(*names)
    if len(shared) == 1:
        return shared.pop()
    listing = listed(map(clean, sorted(set().union(*names))), 6)
    problem = f"several learning rates vary ({listing}); fix all except one"
    if not shared:
        problem = "no learning rate varies in all studies"
    raise AdvisorError(f"a ladder compares sweeps of one learning rate, but {problem}")


def _find_sweeps(studies: Sequence[Study], rate: str, size: str | None) -> list[LearningRateSweep]:
    sweeps: dict[float, LearningRateSweep] = {}
    for study in studies:
        has_failed = failures.failure_masks(study).has_failed
        trials_by_size: dict[float, list[Trial]] = {}
        for trial in study.trials:
            at = trial.fact(MODEL_SIZE_FACT) if size is None else as_number(trial.params.get(size, ""))
            if math.isfinite(at) and at > 0 and as_number(trial.params.get(rate, "")) > 0 and study.ended[trial.index]:
                trials_by_size.setdefault(at, []).append(trial)
        if not trials_by_size:
            start_text = f"no trial of {clean(study.name)} logged "
            fact_text = f"a number for {clean(size)}" if size is not None else "its number of parameters; pass --size NAME"
            raise AdvisorError(start_text + fact_text)
        for at, trials in trials_by_size.items():
            if at in sweeps:
                raise AdvisorError(f"two studies have the size {at:,.10g}; pass only one of them")
            successful = tuple(t for t in trials if study.comparable[t.index] and not has_failed[t.index])
            sweeps[at] = LearningRateSweep(at, study, successful, tuple(t for t in trials if has_failed[t.index]))
    return [sweeps[at] for at in sorted(sweeps)]


def _rates_and_costs(sweep: LearningRateSweep, rate: str) -> tuple[FloatArray, FloatArray]:
    rates = np.log([as_number(t.params[rate]) for t in sweep.trials])
    return rates, sweep.study.costs[[t.index for t in sweep.trials]]


def _count_learning_rates(sweep: LearningRateSweep, rate: str) -> int:
    return len({as_number(t.params[rate]) for t in sweep.trials})


def _find_open_sweep_end(sweep: LearningRateSweep, optimum: Optimum, rate: str) -> SweepEnd | None:
    """Return the end of the sweep beyond which the best learning rate may lie. No better rate lies beyond the high end if
    trials with higher learning rates failed."""
    rates = _rates_and_costs(sweep, rate)[0]
    if np.mean(optimum.positions <= rates.min()) > MAX_SWEEP_END_PROBABILITY:
        return "low"
    higher_rate_failed = any(as_number(t.params[rate]) > math.exp(rates.max()) for t in sweep.failed)
    return "high" if np.mean(optimum.positions >= rates.max()) > MAX_SWEEP_END_PROBABILITY and not higher_rate_failed else None


def _ladder_notes(sweeps: Sequence[LearningRateSweep], rate: str, size: str | None) -> list[str]:
    notes = []
    searched = {(name, len({t.params.get(name) for t in s.trials})) for s in sweeps for name in s.study.searched}
    varied = {name for name, value_count in searched if name not in (rate, size) and value_count > 1}
    if varied:
        names = listed(map(clean, sorted(varied)), 6)
        notes.append(f"{names} also {'vary' if len(varied) > 1 else 'varies'} within a size; the effect counts as noise.")
    planned_steps = [[p for t in s.trials if math.isfinite(p := s.study.planned_steps(t))] for s in sweeps]
    steps = [float(np.median(p)) if p else 1.0 for p in planned_steps]
    if max(steps) > 1.1 * min(steps):
        lengths = f"{min(steps):,.0f} to {max(steps):,.0f} steps"
        notes.append(f"Trials have {lengths}, depending on the size; the results hold for this scaling of steps.")
    single_seed = [s for s in sweeps if len(s.trials) == _count_learning_rates(s, rate)]
    if single_seed:
        sizes = f"{count(len(single_seed), 'size')} of {len(sweeps)}"
        notes.append(f"{sizes} tried each rate once; a second seed narrows intervals.")
    return notes


def propose_further_runs(
    sizes: Sequence[float], points: Sequence[tuple[FloatArray, FloatArray]], ends: Sequence[SweepEnd | None]
) -> tuple[FurtherRuns, ...]:
    """Return the further runs, smallest model size first. points: (logarithms of learning rates, costs) of each sweep. ends:
    for each sweep, the end beyond which the best learning rate may lie.

    A sweep with such an end gets two further learning rates beyond this end. If there is no such end, every sweep gets new
    seeds near its best rate. `benchmarks/quality/ladder.py` measures how often the further runs are enough."""
    sweeps = zip(sizes, points, ends, strict=True)
    if any(ends):
        return tuple(FurtherRuns(size=s, rates=_rates_beyond_end(p[0], e), seeds=1) for s, p, e in sweeps if e is not None)
    return tuple(FurtherRuns(size=s, rates=_rates_around_best(*p), seeds=N_NEW_SEEDS) for s, p, _ in sweeps)


def _rates_around_best(log_rates: FloatArray, costs: FloatArray) -> tuple[float, ...]:
    tried_rates = np.unique(log_rates)
    best_index = int(np.argmin([costs[log_rates == r].mean() for r in tried_rates]))
    first_index = max(min(best_index - N_REPEATED_RATES // 2, len(tried_rates) - N_REPEATED_RATES), 0)
    return tuple(round_significant(math.exp(r), 3) for r in tried_rates[first_index : first_index + N_REPEATED_RATES])


def _rates_beyond_end(log_rates: FloatArray, end: SweepEnd) -> tuple[float, ...]:
    tried_rates = np.unique(log_rates)
    step = max(float(np.median(np.diff(tried_rates))), math.log(1.5))
    start, sign = (tried_rates[0], -1) if end == "low" else (tried_rates[-1], 1)
    return tuple(round_significant(math.exp(start + sign * k * step), 3) for k in (1, 2))
