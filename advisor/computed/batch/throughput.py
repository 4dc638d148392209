"""Computes the training throughput of trials by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.batch import timing
from advisor.computed.batch.batches import are_drawn_from_range
from advisor.model import parameter_kinds
from advisor.model.space import as_number
from advisor.model.study import Study, Trial
from advisor.stats.estimates import Estimate, find_saturation, median_of_series, pooled_mean

MIN_THROUGHPUT_GAIN = 0.1
"""Minimum relative gain in throughput for which a larger batch size is worthwhile. Our choice."""
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput of the trials of one batch size."""

    batch_size: float
    trials: tuple[Trial, ...]
    mean_log_rate: Estimate
    """Natural logarithm of the examples per second."""

    @property
    def examples_per_s(self) -> float:
        """Typical throughput (geometric mean), in examples per second."""
        return math.exp(self.mean_log_rate.value)


@computed
def throughput_by_batch_size(study: Study) -> list[Throughput]:
    """Return the throughput of each batch size, smallest first, on the most common device; sizes of a range by powers of two."""
    rates = [(t, parameter_kinds.batch_size(t), _mean_log_throughput(study, t)) for t in study.trials]
    rated = [(t, size, rate) for t, size, rate in rates if rate is not None and size > 0]
    devices = [t.facts.get("device") for t, _, _ in rated]
    common_device = max(devices, key=devices.count, default=None)
    rated = [k for k, device in zip(rated, devices, strict=True) if device == common_device]
    are_from_range = are_drawn_from_range([size for _, size, _ in rated])
    rates_by_size: dict[float, list[tuple[Trial, Estimate]]] = {}
    for trial, size, rate in rated:
        group = 2.0 ** round(math.log2(size)) if are_from_range else size
        rates_by_size.setdefault(group, []).append((trial, rate))
    return [Throughput(s, tuple(t for t, _ in g), pooled_mean([r for _, r in g])) for s, g in sorted(rates_by_size.items())]


def _mean_log_throughput(study: Study, trial: Trial) -> Estimate | None:
    """Return the typical log of the examples per second, without the first tenth of the logged steps (at most ten), or None."""
    examples_per_s = study.curve(trial, "examples_per_second").finite.values
    if not len(examples_per_s):
        batch_size = parameter_kinds.batch_size(trial)
        examples_per_s = batch_size / np.maximum(study.curve(trial, "step_time").finite.values, 1e-12)
    examples_per_s = examples_per_s[min(len(examples_per_s) // 10, timing.SKIPPED_FIRST_STEPS) :]
    examples_per_s = examples_per_s[np.isfinite(examples_per_s) & (examples_per_s > 0)]
    return median_of_series(np.log(examples_per_s)) if len(examples_per_s) else None


@computed
def recommended_batch_size(
    study: Study, name: str, material: float = MIN_THROUGHPUT_GAIN, alpha: float = SIGNIFICANCE_LEVEL
) -> float | None:
    """Return the smallest value of the batch size `name` beyond which throughput hardly grows; None if throughput is known for
    fewer than two batch sizes, or if the data loader limits the throughput of most trials."""
    throughputs = throughput_by_batch_size(study)
    data_wait_shares = [times.data_wait_share for times in timing.step_times_of_study(study)]
    if len(throughputs) < 2 or timing.ratios_above_limit(data_wait_shares, timing.MAX_DATA_WAIT_SHARE, SIGNIFICANCE_LEVEL):
        return None
    recommendation = worthwhile_batch_size(throughputs, material, alpha)
    tried_sizes = {size for t in recommendation.trials if (size := as_number(t.params.get(name))) > 0}
    return tried_sizes.pop() if len(tried_sizes) == 1 else recommendation.batch_size


def worthwhile_batch_size(throughputs: Sequence[Throughput], material: float, alpha: float) -> Throughput:
    """Return the smallest batch size such that no larger one raises throughput by the share `material` and by more than noise."""
    if len(throughputs) < 2:
        return throughputs[0]
    log_rates = (s.mean_log_rate for s in throughputs)
    rates = [r if math.isfinite(r.error) else r._replace(error=0.0) for r in log_rates]
    batch_sizes = np.array([s.batch_size for s in throughputs])
    return throughputs[find_saturation(batch_sizes, rates, material=material, doubling=2.0, alpha=alpha).chosen_index]
