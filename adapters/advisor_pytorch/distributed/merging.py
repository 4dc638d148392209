"""Merges the steps of all ranks on rank 0: the global gradient norm, the step times of the slowest and the fastest rank, and
the examples per second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from advisor import contract
from advisor_logging.table import MetricRow
from advisor_pytorch.steps.gradients import LIMIT, NORM, SHARD_NORM_SUFFIX, shard_metric_name

MAX_RANK_WAIT_S = 10.0
"""Maximum seconds that a step waits for the values of other ranks."""
MAX_STORED_STEPS_PER_RANK = 20_000
"""Maximum number of stored steps of a rank that is ahead of rank 0. If a rank is further ahead than this, its oldest steps are
dropped."""

MetricValues = Mapping[str, float]


class StepMerger:
    """Keeps the steps of rank 0 until the values of other ranks arrive, and returns the merged steps in order. Times are in
    seconds.

    If a step has waited `wait_s` seconds for a rank, later steps do not wait for that rank until it sends values again.
    """

    def __init__(self, world_size: int, wait_s: float = MAX_RANK_WAIT_S) -> None:
        self._wait_s = wait_s
        self._waiting: deque[tuple[float, MetricRow]] = deque()
        self._others: dict[int, dict[int, MetricValues]] = {rank: {} for rank in range(1, world_size)}
        self._latest = dict.fromkeys(self._others, -1)
        self._last_released = -1
        self.late_ranks: set[int] = set()
        """Ranks whose values are late; later steps no longer wait for the values of these ranks."""
        self.first_incomplete_step: int | None = None
        """First step without a gradient norm because a rank did not send its part of the norm; None if there is no such
        step."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def add_steps_of_rank(self, rank: int, rows: Sequence[tuple[int, MetricValues]]) -> None:
        """rows: steps of a rank other than 0, in order."""
        unmerged_steps = self._others.get(rank)
        if unmerged_steps is None or not rows:
            return
        unmerged_steps.update((step, values) for step, values in rows if step > self._last_released)
        for step in list(unmerged_steps)[:-MAX_STORED_STEPS_PER_RANK]:
            del unmerged_steps[step]
        self._latest[rank] = max(self._latest[rank], rows[-1][0])
        self.late_ranks.discard(rank)

    def stop_waiting_for(self, rank: int) -> None:
        self.late_ranks.add(rank)

    def add_steps_of_rank_0(self, rows: Sequence[MetricRow], now: float) -> None:
        """rows: steps of rank 0, in order."""
        self._waiting.extend((now, row) for row in rows)

    def take_ready_steps(self, now: float) -> list[MetricRow]:
        """Merge and return the steps that have all ranks' values or have waited `wait_s` seconds."""
        ready: list[MetricRow] = []
        while self._waiting:
            since, (step, time_ms, values) = self._waiting[0]
            lacking_ranks = [r for r, steps in self._others.items() if step not in steps and self._latest[r] < step]
            lacking_ranks = [r for r in lacking_ranks if r not in self.late_ranks]
            if lacking_ranks and now - since < self._wait_s:
                break
            self.late_ranks.update(lacking_ranks)
            self._waiting.popleft()
            values_of_others = [steps.pop(step, None) for steps in self._others.values()]
            self._last_released = max(self._last_released, step)
            merged = merge_step(values, values_of_others)
            is_incomplete = shard_metric_name(contract.GRAD_NORM) in values and contract.GRAD_NORM not in merged
            if self.first_incomplete_step is None and is_incomplete:
                self.first_incomplete_step = step
            ready.append((step, time_ms, merged))
        return ready


def merge_step(own: MetricValues, others: Sequence[MetricValues | None]) -> dict[str, float]:
    """Merge the values of rank 0 (`own`) and of each other rank at one step; `others` has None for a rank with missing values.

    Metrics that need all ranks are then omitted; a rank without values counts with the mean examples per second.
    """
    received = [values for values in others if values is not None]
    has_all_ranks = len(received) == len(others)
    merged: dict[str, float] = {}
    for name, value in own.items():
        if not name.endswith(SHARD_NORM_SUFFIX):
            merged[name] = value
        elif has_all_ranks and all(name in values for values in received):
            merged[name.removesuffix(SHARD_NORM_SUFFIX)] = math.hypot(value, *(values[name] for values in received))
    _merge_clippings(merged)
    if not others:
        return merged
    step_times = [values[contract.STEP_TIME] for values in (own, *received) if contract.STEP_TIME in values]
    if len(step_times) == len(others) + 1:
        merged[contract.SLOWEST_RANK], merged[contract.FASTEST_RANK] = max(step_times), min(step_times)
    rates = [values[contract.EXAMPLES_PER_SECOND] for values in (own, *received) if contract.EXAMPLES_PER_SECOND in values]
    if rates:
        merged[contract.EXAMPLES_PER_SECOND] = sum(rates) / len(rates) * (len(others) + 1)
    return merged


def _merge_clippings(merged: dict[str, float]) -> None:
    """Replace gradient norms and clipping thresholds by `contract.CLIPPED`: 1 if any norm exceeded its threshold, else 0."""
    norms = {name.removeprefix(NORM): merged.pop(name) for name in list(merged) if name.startswith(NORM)}
    limits = {name.removeprefix(LIMIT): merged.pop(name) for name in list(merged) if name.startswith(LIMIT)}
    if both := norms.keys() & limits.keys():
        merged[contract.CLIPPED] = 0.0 if all(norms[i] <= limits[i] for i in both) else 1.0  # NaN counts as clipped
