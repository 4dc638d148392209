"""Computes the training throughput of trials by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.batch import timing
from advisor.model import parameter_kinds
from advisor.model.space import as_number
from advisor.model.study import Study, Trial
from advisor.stats.saturation import Mean, growth, pooled_mean, series_mean

_MAX_SEPARATE_BATCH_SIZES = 12
"""With more distinct batch sizes than this, we assume that they were drawn from a range and not from a list."""
_MAX_LISTED_BATCH_SIZES = 4
"""Up to this many distinct batch sizes count as a list of choices, even if most were tried once and are not powers of two."""
MATERIAL = 0.1
"""Minimum relative gain in throughput that makes a larger batch worthwhile. Our choice."""
FALSE_ALARMS = 0.05
"""Significance level: probability that noise is mistaken for a higher throughput."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput of the trials of one batch size."""

    size: float
    trials: tuple[Trial, ...]
    rate: Mean
    """Mean of the natural logarithm of the examples per second."""

    @property
    def examples_per_s(self) -> float:
        """Typical throughput (geometric mean), in examples per second."""
        return math.exp(self.rate.value)


@computed
def throughputs(study: Study) -> list[Throughput]:
    """Return the throughput of each batch size, smallest first. Only trials on the most common device count.

    Batch sizes that were drawn from a range are grouped by the nearest power of two.
    """
    rated_trials = [
        (t, parameter_kinds.batch_size(t), rate)
        for t in study.trials
        if (rate := _trial_throughput(study, t)) is not None
    ]
    rated_trials = [(t, size, rate) for t, size, rate in rated_trials if size > 0]
    devices = [t.facts.get("device") for t, _, _ in rated_trials]
    usual_device = max(devices, key=devices.count, default=None)
    rated_trials = [k for k, device in zip(rated_trials, devices, strict=True) if device == usual_device]
    from_range = _drawn_from_range([size for _, size, _ in rated_trials])
    groups: dict[float, list[tuple[Trial, Mean]]] = {}
    for trial, size, rate in rated_trials:
        groups.setdefault(2.0 ** round(math.log2(size)) if from_range else size, []).append((trial, rate))
    return [Throughput(s, tuple(t for t, _ in g), pooled_mean([r for _, r in g])) for s, g in sorted(groups.items())]


def _drawn_from_range(sizes: Sequence[float]) -> bool:
    """Return True if the trials' batch sizes were drawn from a range: many of them are distinct, or few were tried repeatedly."""
    distinct = set(sizes)
    no_powers_of_two = sum(not math.log2(size).is_integer() for size in distinct)
    rarely_repeated = len(distinct) > max(_MAX_LISTED_BATCH_SIZES, len(sizes) / 2) and 2 * no_powers_of_two > len(
        distinct
    )
    return len(distinct) > _MAX_SEPARATE_BATCH_SIZES or rarely_repeated


def _trial_throughput(study: Study, trial: Trial) -> Mean | None:
    """Return the trial's throughput; None if unknown. The estimate skips the first tenth of the logged steps, but at most ten
    steps."""
    rates = study.curve(trial, "examples_per_second").finite.values
    if not len(rates):
        size = parameter_kinds.batch_size(trial)
        rates = size / np.maximum(study.curve(trial, "step_time").finite.values, 1e-12)
    rates = rates[min(len(rates) // 10, timing.SKIPPED_STEPS) :]
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return series_mean(np.log(rates)) if len(rates) else None


@computed
def recommended_batch_size(
    study: Study, name: str, material: float = MATERIAL, alpha: float = FALSE_ALARMS
) -> float | None:
    """Return the smallest batch size (hyperparameter `name`) beyond which throughput hardly grows.

    Return None if fewer than two batch sizes have a known throughput, or if most trials waited for data, because the data
    loader then limits throughput.
    """
    known_speeds = throughputs(study)
    waited = [times.waited for times in timing.step_times_of_study(study)]
    if len(known_speeds) < 2 or timing.ratios_above_limit(waited, timing.MAX_INPUT_SHARE, FALSE_ALARMS):
        return None
    recommendation = worthwhile_batch_size(known_speeds, material, alpha)
    values = {size for t in recommendation.trials if (size := as_number(t.params.get(name))) > 0}
    return values.pop() if len(values) == 1 else recommendation.size


def largest_good_batch_size(study: Study, name: str) -> float | None:
    """Return the largest batch size (hyperparameter `name`) among the best quarter of the trials, at least three; None if
    unknown.

    If throughput is unknown, the largest good batch size is the best choice, because larger batches rarely take longer per
    example.
    """
    ranked = study.ranked()
    good = [as_number(t.params.get(name)) for t in ranked[: max(math.ceil(len(ranked) / 4), 3)]]
    return max((size for size in good if size > 0), default=None)


def usable_batch_size(study: Study, name: str, size: float) -> float:
    """Return a batch size that the study can use: `size` itself if the study tried a list of sizes, else a power of two.

    The result is the largest power of two that exceeds `size` by at most a tenth, lies within the declared limits of the
    hyperparameter `name`, and is smaller than all batch sizes that ran out of memory.
    """
    tried = [value for t in study.trials if (value := as_number(t.params.get(name))) > 0]
    parameter = study.spec.parameters[name]
    if parameter.options or (name in study.inferred and not _drawn_from_range(tried)):
        return size
    lowest, highest = parameter.reach
    nearest = 2.0 ** math.floor(math.log2(1.1 * max(size, 1.0)))
    while nearest > 1 and (nearest > highest or nearest >= smallest_out_of_memory(study)):
        nearest /= 2
    return nearest if nearest >= lowest else size


def worthwhile_batch_size(speeds: Sequence[Throughput], material: float, alpha: float) -> Throughput:
    """Return the smallest batch size such that no larger one raises throughput by the share `material` and, if the noise is
    known, by more than noise."""
    if len(speeds) < 2:
        return speeds[0]
    rates = [s.rate if math.isfinite(s.rate.error) else s.rate._replace(error=0.0) for s in speeds]
    sizes = np.array([s.size for s in speeds])
    return speeds[growth(sizes, rates, material=material, doubling=2.0, alpha=alpha).chosen]


def smallest_out_of_memory(study: Study) -> float:
    """Return the smallest batch size that ran out of memory; NaN if no batch size is known to have run out of memory."""
    sizes = [
        parameter_kinds.batch_size(t)
        for t in study.trials
        if t.status == "infeasible" and t.facts.get("error", "").lower().startswith("out of memory")
    ]
    return min((s for s in sizes if s > 0), default=math.nan)
