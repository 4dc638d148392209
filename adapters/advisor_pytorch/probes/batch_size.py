"""Measures training throughput at increasing batch sizes, with the function `batch_size_sweep`."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from advisor import contract
from advisor_pytorch.checkpoints import Stateful
from advisor_pytorch.outcome import is_out_of_memory
from advisor_pytorch.probes.bench import ProbeBench, StepFunction, check_counts, check_functions
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
    """Times `blocks` of steps until the median throughput is known to `precision` or the time limit is reached."""

    def __init__(self, step: StepFunction, device: torch.device, precision: float, seconds: float) -> None:
        """precision: half the width of the median's 95 % interval, as a fraction of the median. seconds: time limit."""
        self._step, self._device, self._precision, self._seconds = step, device, precision, seconds
        self.blocks: list[TimedBlock] = []

    def run(self, after_step: StepCallback, last_step: Callable[[], int]) -> None:
        """Make the warmup steps, then measure blocks of steps. `after_step` receives the loss of each step."""
        start = time.perf_counter()
        seconds_per_step = min(self._measure_block_seconds(1, after_step) for _ in range(UNTIMED_WARMUP_STEPS))
        steps = max(1, round(min(TARGET_BLOCK_S, self._seconds / (2 * MIN_BLOCKS_FOR_INTERVAL)) / seconds_per_step))
        while True:
            self.blocks.append(TimedBlock(steps, self._measure_block_seconds(steps, after_step), last_step()))
            if self._is_precise_enough() or (
                len(self.blocks) >= MIN_TIMED_BLOCKS and time.perf_counter() - start > self._seconds
            ):
                return

    def _measure_block_seconds(self, steps: int, after_step: StepCallback) -> float:
        wait_for_device(self._device)
        start = time.perf_counter()
        for _ in range(steps):
            after_step(self._step())
        wait_for_device(self._device)
        return time.perf_counter() - start

    def _is_precise_enough(self) -> bool:
        speeds = [b.steps / b.seconds for b in self.blocks]
        low, high = median_confidence_interval(speeds)
        return len(speeds) >= MIN_BLOCKS_FOR_INTERVAL and high - low <= 2 * self._precision * statistics.median(speeds)


def median_confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the population median, given values of shape (n,); with fewer than six values,
    return their range.

    The confidence interval is based on order statistics and assumes only that the values are independent.
    """
    sorted_values, n = sorted(values), len(values)
    if n < MIN_BLOCKS_FOR_INTERVAL:
        return sorted_values[0], sorted_values[-1]
    tail_probability, excluded = 0.0, 0
    while (tail_probability := tail_probability + math.comb(n, excluded) / 2**n) <= 0.025:
        excluded += 1
    return sorted_values[excluded - 1], sorted_values[n - excluded]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def wait_for_device(device: torch.device) -> None:
    if device.type == "cpu":
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


MIN_THROUGHPUT_GAIN = 0.1
"""Minimum relative gain in throughput, compared with a smaller batch, at which a larger batch counts as useful (our choice)."""
MIN_DOUBLING_THROUGHPUT_RATIO = 1.5
"""Minimum ratio of the throughputs at twice the batch size at which we say that throughput nearly doubles."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Measured throughput at one batch size; without memory, only `batch_size` and `out_of_memory` are set."""

    batch_size: int
    examples_per_s: float = math.nan
    """Median number of examples per second over the timed blocks of steps."""
    quartiles: tuple[float, float] = (math.nan, math.nan)
    interval: tuple[float, float] = (math.nan, math.nan)
    """95 % confidence interval of the median throughput; with fewer than six blocks, the minimum and maximum over the blocks."""
    blocks: int = 0
    """Number of timed blocks (`blocks`), and number of steps in all timed blocks (`steps`); warmup steps are not included."""
    steps: int = 0
    memory_peak_bytes: int | None = None
    """Peak memory of tensors on a CUDA device; None on other devices."""
    out_of_memory: bool = False

    @property
    def step_time_s(self) -> float:
        return self.batch_size / self.examples_per_s


@dataclass(frozen=True)
class BatchSizeSweep:
    """Printing the result shows a table with conclusions."""

    sizes: tuple[Throughput, ...]
    """Results in ascending order of batch size; at the last batch size, the device may have run out of memory."""
    experiment: str

    @property
    def measured(self) -> tuple[Throughput, ...]:
        """Results for the batch sizes that fit into memory."""
        return tuple(s for s in self.sizes if not s.out_of_memory)

    @property
    def largest_useful(self) -> int | None:
        """Smallest batch size beyond which throughput no longer grows; None if no batch size was measured.

        Throughput counts as growing if the median at the larger batch size is at least 10 % higher and the 95 % confidence
        intervals of the two medians do not overlap.
        """
        if not self.measured:
            return None
        useful = self.measured[0]
        for size in self.measured[1:]:
            is_large_gain = size.examples_per_s >= (1 + MIN_THROUGHPUT_GAIN) * useful.examples_per_s
            if is_large_gain and size.interval[0] > useful.interval[1]:
                useful = size
        return useful.batch_size

    def __str__(self) -> str:
        header = f"{'batch size':>10}  {'examples/s':>12}  {'middle half':>25}  {'step time':>10}  {'memory peak':>11}"
        return "\n".join([header, *map(_throughput_table_row, self.sizes), "", *self._conclusions()])

    def _conclusions(self) -> Iterator[str]:
        useful, measured = self.largest_useful, self.measured
        if useful is None:
            yield f"Not even batch size {self.sizes[0].batch_size} fits into memory."
            return
        if useful < measured[-1].batch_size:
            yield f"Throughput stops growing at batch size {useful}: use this batch size or a smaller one."
        elif self.sizes[-1].out_of_memory:
            yield f"Throughput grows up to batch size {useful}, the largest that fits into memory: use it."
        else:
            yield f"Throughput still grows at batch size {useful}, the largest size that was tried: try larger sizes."
        if any(s.blocks < MIN_BLOCKS_FOR_INTERVAL for s in measured):
            yield "Some batch sizes had too little time to measure the noise: raise seconds_per_size."
        growth = [b.examples_per_s / a.examples_per_s for a, b in pairwise(measured) if b.batch_size <= useful]
        if growth and max(growth) < MIN_DOUBLING_THROUGHPUT_RATIO:
            yield (
                f"No doubling of the batch size nearly doubled the throughput (at most times {max(growth):.2f}): the device is "
                "busy from the smallest size on, or the step waits for something else, such as the data."
            )
        yield f"Logged as the study {self.experiment!r}."


def batch_size_sweep(
    make_step: Callable[[int], StepFunction],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    start: int = 1,
    maximum: int | None = None,
    precision: float = 0.02,
    seconds_per_size: float = 10.0,
    params: Mapping[str, object] | None = None,
    also: Sequence[Stateful] = (),
    experiment: str = "batch-size probe",
    tracking_uri: str | None = None,
) -> BatchSizeSweep:
    """Measure the training throughput at batch size `start`, then at twice that size, and so on, until the device runs out of
    memory.

        def make_step(batch_size):
            batches = iter(DataLoader(train_set, batch_size, shuffle=True, sampler=...))
            def step():
                x, y = next(batches)
                loss = loss_fn(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss
            return step

        print(batch_size_sweep(make_step, model, optimizer))

    After a warmup, each batch size is measured in blocks of steps until the median throughput is known to `precision` or the
    time limit is reached. Each batch size is recorded as one MLflow run with the param `batch_size`, the objective
    `train/examples_per_s` for each block, and everything that `TuningLogger` logs. If a batch size does not fit into memory,
    its run has the status infeasible and the error "out of memory".

    Args:
        make_step: function that takes a batch size and returns a function that makes one training step and returns the loss.
        model, optimizer: the objects that the step trains; they are restored afterwards.
        start: smallest batch size.
        maximum: largest batch size; None: until memory is exhausted. Required on a CPU, where exhausting memory can kill the
        process. precision: sufficient half width of the median's 95 % interval, as a share of the median.
        seconds_per_size: maximum seconds per batch size, exceeded if three blocks of steps take longer.
        params: hyperparameters to log with every run.
        also: further objects with `state_dict` and `load_state_dict` that a step changes: scheduler, scaler, averaged weights.
        experiment: MLflow experiment for the study; runs that it already contains are kept.
        tracking_uri: address of the MLflow store; None: MLflow's setting, or `sqlite:///mlflow.db` in the working directory.

    Raises:
        TypeError, ValueError: an argument is invalid.
        Exceptions of `make_step` and of the steps, except out-of-memory errors, propagate after everything is restored.

    Source: the section "Choosing the batch size" of the Deep Learning Tuning Playbook.
    """
    check_functions(make_step=make_step)
    check_counts(start=start, maximum=maximum)
    with ProbeBench(
        model, optimizer, probe="batch-size", params=params, also=also, experiment=experiment, tracking_uri=tracking_uri
    ) as bench:
        if maximum is None and bench.device.type == "cpu":
            raise ValueError(
                "on a CPU, running out of memory may end the process: pass `maximum`, the largest batch size to try"
            )
        if maximum is not None and maximum < start:
            raise ValueError(f"maximum {maximum} is below start {start}")
        sizes: list[Throughput] = []
        size = start
        while maximum is None or size <= maximum:
            bench.show_progress(f"batch size {size}")
            sizes.append(_measure_unless_out_of_memory(bench, make_step, size, precision, seconds_per_size))
            if sizes[-1].out_of_memory:
                break
            size *= 2
    return BatchSizeSweep(tuple(sizes), experiment)


def _measure_unless_out_of_memory(
    bench: ProbeBench, make_step: Callable[[int], StepFunction], size: int, precision: float, seconds: float
) -> Throughput:
    try:
        return _measure_size(bench, make_step, size, precision, seconds)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # The memory is freed outside the exception handler, because the exception's frames still hold the tensors of the step.
    bench.reset()  # restoring the initial state frees the gradients and the optimizer's moments
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    return Throughput(size, out_of_memory=True)


def _measure_size(
    bench: ProbeBench, make_step: Callable[[int], StepFunction], size: int, precision: float, seconds: float
) -> Throughput:
    objective = contract.EXAMPLES_PER_SECOND
    on_cuda = bench.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(bench.device)
    with bench.trial({"batch_size": size}, objective, direction="maximize") as log:
        log.note({contract.TAG_BATCH_SIZE: str(size)})
        watch = Stopwatch(make_step(size), bench.device, precision, seconds)
        try:
            watch.run(log.step, lambda: log.steps - 1)
        finally:  # log only after the measurement, because logging would slow it down
            for block in watch.blocks:
                log.evaluate({objective: size * block.steps / block.seconds}, step=max(block.last_step, 0))
        log.close("complete")  # report a complete trial even if its training diverged, because only its speed matters
    speeds = [size * b.steps / b.seconds for b in watch.blocks]
    low, middle, high = quartiles(speeds)
    peak = torch.cuda.max_memory_allocated(bench.device) if on_cuda else None
    steps = sum(b.steps for b in watch.blocks)
    return Throughput(size, middle, (low, high), median_confidence_interval(speeds), len(speeds), steps, peak)


def _throughput_table_row(size: Throughput) -> str:
    if size.out_of_memory:
        return f"{size.batch_size:>10,}  out of memory"
    low, high = map(_format_number, size.quartiles)
    peak = "" if size.memory_peak_bytes is None else f"{size.memory_peak_bytes / 2**30:.2f} GiB"
    return (
        f"{size.batch_size:>10,}  {_format_number(size.examples_per_s):>12}  {f'{low} to {high}':>25}  "
        f"{1000 * size.step_time_s:>7.4g} ms  {peak:>11}"
    )


def _format_number(number: float) -> str:
    return f"{float(f'{number:.4g}'):,.10g}"
