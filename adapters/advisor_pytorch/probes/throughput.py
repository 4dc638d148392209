"""How many examples a second a step takes, measured until it is known well enough."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from advisor_pytorch.probes.bench import Step
from advisor_pytorch.steps.device import Value

Stepped = Callable[[Value], object]
"""Is told the loss of each step."""

WARMUP_STEPS = 3
"""Steps before the first block: caches, kernels chosen by trying, compilation."""
BLOCK_S = 0.1
"""A block of steps lasts about this long: on a device, each ends with a wait for it, which must not weigh."""
MIN_INTERVAL_BLOCKS = 6
"""The range of six values holds the median with 97 %; that of five not with 95 %."""
MIN_BLOCKS = 3
"""Blocks that are measured whatever they take."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps in a row, timed together."""

    steps: int
    seconds: float
    last_step: int
    """As the training counts."""


class Stopwatch:
    """Times blocks of steps on a device until the median is known to `precision`, or time is up; `blocks` holds what there is."""

    def __init__(self, step: Step, device: torch.device, precision: float, seconds: float) -> None:
        """precision: half width of the 95 % interval of the median, as a share of it. seconds: the time that there is."""
        self._step, self._device, self._precision, self._seconds = step, device, precision, seconds
        self.blocks: list[Block] = []

    def run(self, after_step: Stepped, last_step: Callable[[], int]) -> None:
        """Warm up and measure. `after_step` is told each step's loss, `last_step` tells how far the training has come."""
        started = time.perf_counter()
        once = min(self._time(1, after_step) for _ in range(WARMUP_STEPS))
        steps = max(1, round(min(BLOCK_S, self._seconds / (2 * MIN_INTERVAL_BLOCKS)) / once))
        while True:
            self.blocks.append(Block(steps, self._time(steps, after_step), last_step()))
            if self._is_known() or (len(self.blocks) >= MIN_BLOCKS and time.perf_counter() - started > self._seconds):
                return

    def _time(self, steps: int, after_step: Stepped) -> float:
        wait_for(self._device)
        started = time.perf_counter()
        for _ in range(steps):
            after_step(self._step())
        wait_for(self._device)
        return time.perf_counter() - started

    def _is_known(self) -> bool:
        speeds = [b.steps / b.seconds for b in self.blocks]
        low, high = median_interval(speeds)
        return len(speeds) >= MIN_INTERVAL_BLOCKS and high - low <= 2 * self._precision * statistics.median(speeds)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values (n,) between which the median of what they are drawn from lies with 95 %; their range below six values.

    Order statistics: nothing is assumed of how the values scatter but that they do so independently.
    """
    ordered, n = sorted(values), len(values)
    if n < MIN_INTERVAL_BLOCKS:
        return ordered[0], ordered[-1]
    outside, cut = 0.0, 0
    while (outside := outside + math.comb(n, cut) / 2**n) <= 0.025:
        cut += 1
    return ordered[cut - 1], ordered[n - cut]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the values (n,), n at least 1."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cpu":
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()
