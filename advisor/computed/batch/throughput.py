"""How fast trials train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.batch import timing
from advisor.computed.space import kinds
from advisor.model.study import Study, Trial
from advisor.stats.saturation import Mean, growth, pooled, series_mean

_DISTINCT = 12
"""Batch sizes above which they were drawn from a range and not listed."""


def examples_per_second(study: Study, trial: Trial, batch_size: float) -> float:
    """Median throughput of a trial, as logged, else from its step time and batch size; NaN if neither was logged."""
    speed = study.curve(trial, "examples_per_second").finite.values
    if len(speed):
        return float(np.median(speed))
    times = study.curve(trial, "step_time").finite.values
    return batch_size / float(np.median(times)) if len(times) and np.median(times) > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast trials of one batch size train."""

    size: float
    trials: tuple[Trial, ...]
    rate: Mean
    """Natural logarithm of the examples per second."""

    @property
    def examples_per_s(self) -> float:
        """The typical throughput."""
        return math.exp(self.rate.value)


def speeds(study: Study) -> list[Speed]:
    """The throughput at each batch size, smallest first, on the device that most trials with a throughput ran on.

    With more than a dozen sizes, those that round to one power of two are taken together, per example as fast as they are.
    """
    found = [(t, kinds.batch_size(t), rate) for t in study.trials if (rate := _rate(study, t)) is not None]
    found = [(t, size, rate) for t, size, rate in found if size > 0]
    devices = [t.facts.get("device") for t, _, _ in found]
    usual = max(devices, key=devices.count, default=None)
    found = [f for f, device in zip(found, devices, strict=True) if device == usual]
    together = len({size for _, size, _ in found}) > _DISTINCT
    groups: dict[float, list[tuple[Trial, Mean]]] = {}
    for trial, size, rate in found:
        groups.setdefault(2.0 ** round(math.log2(size)) if together else size, []).append((trial, rate))
    return [Speed(s, tuple(t for t, _ in g), pooled([r for _, r in g])) for s, g in sorted(groups.items())]


def _rate(study: Study, trial: Trial) -> Mean | None:
    """The trial's throughput, after its first tenth or its first ten logged steps; None if unknown."""
    rates = study.curve(trial, "examples_per_second").finite.values
    if not len(rates):
        size = kinds.batch_size(trial)
        rates = size / np.maximum(study.curve(trial, "step_time").finite.values, 1e-12)
    rates = rates[min(len(rates) // 10, timing.FIRST) :]
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return series_mean(np.log(rates)) if len(rates) else None


def worthwhile(speeds: Sequence[Speed], material: float, alpha: float) -> Speed:
    """Of one or more, the size from which on a larger one brings no share `material` more, beyond noise where that is known."""
    if len(speeds) < 2:
        return speeds[0]
    rates = [s.rate if math.isfinite(s.rate.error) else s.rate._replace(error=0.0) for s in speeds]
    sizes = np.array([s.size for s in speeds])
    return speeds[growth(sizes, rates, material=material, doubling=2.0, alpha=alpha).chosen]


def ran_out(study: Study) -> float:
    """The smallest batch size that ran out of memory; NaN where none is known to have."""
    sizes = [
        kinds.batch_size(t)
        for t in study.trials
        if t.status == "infeasible" and t.facts.get("error", "").lower().startswith("out of memory")
    ]
    return min((s for s in sizes if s > 0), default=math.nan)


def bottleneck(study: Study, speeds: Sequence[Speed]) -> tuple[str, str]:
    """What the steps wait for, as far as it was measured, and what to do: a clause and a sentence."""
    times = [t for s in speeds for trial in s.trials[:4] if (t := timing.read(study, trial)) is not None]
    waited = np.median([t.waited.value for t in times] or [0.0])
    blocked = np.median([t.blocked.value for t in times if t.blocked is not None] or [0.0])
    if waited > timing.INPUT:
        return f"the steps wait for data {waited:.0%} of their time", "Speed the input up, then measure again."
    if blocked > timing.HOST:
        tip = "Do not wait for the device in every step, then measure again."
        return f"the GPU waits for the loop {blocked:.0%} of the time", tip
    cause = "the device is busy from the smallest size on" + ("" if times else ", or waits for what was not measured")
    return (
        cause,
        "Profile a few steps; until a doubling nearly doubles the throughput, a larger batch makes training no faster.",
    )


def readable(amount: float) -> str:
    """A large number to four significant digits, without an exponent: `131,100`."""
    return f"{float(f'{amount:.4g}'):,.0f}" if abs(amount) >= 1000 else f"{amount:.4g}"
