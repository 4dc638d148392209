"""The training throughput of trials by batch size."""

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
from advisor.stats.saturation import Mean, growth, pooled, series_mean

_DISTINCT = 12
"""Maximum number of batch sizes to compare one by one; if there are more, they were drawn from a range."""
_GRID = 4
"""Maximum number of batch sizes that may be a grid although most were tried once and are no powers of two."""
MATERIAL = 0.1
"""Minimum relative gain in throughput that makes a larger batch worthwhile. Our choice."""
FALSE_ALARMS = 0.05
"""Probability of mistaking noise for a higher throughput."""


@dataclass(frozen=True, slots=True)
class Speed:
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
def speeds(study: Study) -> list[Speed]:
    """Return the throughput of each batch size, smallest first, on the most frequent device among trials with a throughput.

    Batch sizes that were drawn from a range are grouped by the nearest power of two.
    """
    known = [(t, parameter_kinds.batch_size(t), rate) for t in study.trials if (rate := _rate(study, t)) is not None]
    known = [(t, size, rate) for t, size, rate in known if size > 0]
    devices = [t.facts.get("device") for t, _, _ in known]
    usual = max(devices, key=devices.count, default=None)
    known = [k for k, device in zip(known, devices, strict=True) if device == usual]
    together = _from_range([size for _, size, _ in known])
    groups: dict[float, list[tuple[Trial, Mean]]] = {}
    for trial, size, rate in known:
        groups.setdefault(2.0 ** round(math.log2(size)) if together else size, []).append((trial, rate))
    return [Speed(s, tuple(t for t, _ in g), pooled([r for _, r in g])) for s, g in sorted(groups.items())]


def _from_range(sizes: Sequence[float]) -> bool:
    """Return whether the trials' batch sizes were drawn from a range: many different ones, or hardly any that repeats."""
    distinct = set(sizes)
    odd = sum(not math.log2(size).is_integer() for size in distinct)
    rare = len(distinct) > max(_GRID, len(sizes) / 2) and 2 * odd > len(distinct)
    return len(distinct) > _DISTINCT or rare


def _rate(study: Study, trial: Trial) -> Mean | None:
    """Return the trial's throughput, without its first tenth or its first ten logged steps; None if unknown."""
    rates = study.curve(trial, "examples_per_second").finite.values
    if not len(rates):
        size = parameter_kinds.batch_size(trial)
        rates = size / np.maximum(study.curve(trial, "step_time").finite.values, 1e-12)
    rates = rates[min(len(rates) // 10, timing.FIRST) :]
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return series_mean(np.log(rates)) if len(rates) else None


@computed
def recommended(study: Study, name: str, material: float = MATERIAL, alpha: float = FALSE_ALARMS) -> float | None:
    """Return the value of the hyperparameter `name`, a batch size, above which no larger one is worthwhile.

    None if the throughput of fewer than two sizes is known.
    """
    known = speeds(study)
    if len(known) < 2:
        return None
    use = worthwhile(known, material, alpha)
    own = {size for t in use.trials if (size := as_number(t.params.get(name))) > 0}
    return own.pop() if len(own) == 1 else use.size


def usable(study: Study, name: str, size: float) -> float:
    """Return the batch size itself if the study tried a list of sizes, else the power of two nearest to it on a log scale.

    It is within the declared limits of the hyperparameter `name`, and smaller than the sizes that ran out of memory.
    """
    tried = [value for t in study.trials if (value := as_number(t.params.get(name))) > 0]
    parameter = study.spec.parameters[name]
    if parameter.options or (name in study.inferred and not _from_range(tried)):
        return size
    lowest, highest = parameter.reach
    nearest = 2.0 ** round(math.log2(max(size, 1.0)))
    while nearest > 1 and (nearest > highest or nearest >= ran_out(study)):
        nearest /= 2
    return nearest if nearest >= lowest else size


def worthwhile(speeds: Sequence[Speed], material: float, alpha: float) -> Speed:
    """Return the batch size above which no larger one is faster by the share `material` (beyond noise, if noise is known)."""
    if len(speeds) < 2:
        return speeds[0]
    rates = [s.rate if math.isfinite(s.rate.error) else s.rate._replace(error=0.0) for s in speeds]
    sizes = np.array([s.size for s in speeds])
    return speeds[growth(sizes, rates, material=material, doubling=2.0, alpha=alpha).chosen]


def ran_out(study: Study) -> float:
    """Return the smallest batch size that ran out of memory; NaN if no batch size is known to have run out of memory."""
    sizes = [
        parameter_kinds.batch_size(t)
        for t in study.trials
        if t.status == "infeasible" and t.facts.get("error", "").lower().startswith("out of memory")
    ]
    return min((s for s in sizes if s > 0), default=math.nan)
