"""Measures, to a given precision, how many examples per second a training step processes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from advisor_pytorch.probes.bench import TrainingStepFunction
from advisor_pytorch.steps.device import ScalarValue

StepCallback = Callable[[ScalarValue], object]
"""Function that receives the loss of each step."""

UNTIMED_WARMUP_STEPS = 3
"""Number of steps before the first timed block: in these steps, caches fill, kernels are selected and code is compiled."""
TARGET_BLOCK_S = 0.1
"""Approximate seconds per timed block: long enough that waiting for the device at the end of a block is negligible."""
MIN_BLOCKS_FOR_INTERVAL = 6
"""Minimum number of blocks for a 95 % confidence interval of the median. The range from the smallest to the largest of six
values contains the true median with 97 % probability, that of five values only with 94 %."""
MIN_TIMED_BLOCKS = 3
"""Minimum number of timed blocks per measurement, even if these blocks take longer than the time limit."""


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """Consecutive training steps that are timed together."""

    steps: int
    seconds: float
    last_step: int
    """Number of the block's last training step; steps count from the start of the training."""


class Stopwatch:
    """Times blocks of steps, which are stored in `blocks`, until the median throughput is known to `precision` or the time
    limit is reached."""

    def __init__(self, step: TrainingStepFunction, device: torch.device, precision: float, seconds: float) -> None:
        """precision: half the width of the median's 95 % confidence interval, as a fraction of the median. seconds: time limit
        of the measurement."""
        self._step, self._device, self._precision, self._seconds = step, device, precision, seconds
        self.blocks: list[TimedBlock] = []

    def run(self, after_step: StepCallback, last_step: Callable[[], int]) -> None:
        """Make the warmup steps, then measure blocks of steps. `after_step` receives the loss of each step; `last_step` returns
        the number of the last completed step."""
        started = time.perf_counter()
        once = min(self._measure_block_seconds(1, after_step) for _ in range(UNTIMED_WARMUP_STEPS))
        steps = max(1, round(min(TARGET_BLOCK_S, self._seconds / (2 * MIN_BLOCKS_FOR_INTERVAL)) / once))
        while True:
            self.blocks.append(TimedBlock(steps, self._measure_block_seconds(steps, after_step), last_step()))
            if self._is_precise_enough() or (
                len(self.blocks) >= MIN_TIMED_BLOCKS and time.perf_counter() - started > self._seconds
            ):
                return

    def _measure_block_seconds(self, steps: int, after_step: StepCallback) -> float:
        wait_for_device(self._device)
        started = time.perf_counter()
        for _ in range(steps):
            after_step(self._step())
        wait_for_device(self._device)
        return time.perf_counter() - started

    def _is_precise_enough(self) -> bool:
        speeds = [b.steps / b.seconds for b in self.blocks]
        low, high = median_confidence_interval(speeds)
        return len(speeds) >= MIN_BLOCKS_FOR_INTERVAL and high - low <= 2 * self._precision * statistics.median(speeds)


def median_confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the population median, given values of shape (n,); with fewer than six values,
    return their range.

    The confidence interval is based on order statistics and assumes only that the values are independent.
    """
    ordered, n = sorted(values), len(values)
    if n < MIN_BLOCKS_FOR_INTERVAL:
        return ordered[0], ordered[-1]
    outside, cut = 0.0, 0
    while (outside := outside + math.comb(n, cut) / 2**n) <= 0.025:
        cut += 1
    return ordered[cut - 1], ordered[n - cut]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, median and upper quartile of values of shape (n,), where n is at least 1."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def wait_for_device(device: torch.device) -> None:
    """Wait until the device has finished its queued operations."""
    if device.type == "cpu":
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()
