"""Measures the range of learning rates in which training works: see `learning_rate_range`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from advisor_pytorch.checkpoints import Stateful
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.probes.bench import ProbeBench, StepFunction, check_counts, check_functions, read_number, warmup_rate
from advisor_pytorch.validation import check_count

PROBE_LOSS_METRIC = "probe/loss"
"""Objective of the probe's study: the mean training loss over the last tenth of the steps, logged ten times per trial."""
MIN_FRACTION_OF_LARGEST_DECREASE = 0.1
"""Minimum decrease of the loss at which training works, as a fraction of the largest decrease (our choice)."""
DIVERGENCE_LOSS_RATIO = 4.0
"""Ratio of the average loss to that of the untrained model at which a trial counts as diverged (our choice)."""


@dataclass(frozen=True, slots=True)
class RateTrial:
    """Result of a trial at one constant learning rate."""

    learning_rate: float
    loss: float
    """Mean loss over the last tenth of the steps; if the trial diverged, the mean over the same number of steps before the
    divergence. The mean loss may be non-finite."""
    fall: float
    """Decrease of the loss: the untrained model's loss minus the trial's loss, both on the same batches."""
    error: float  # standard error of the decrease `fall`
    diverged_at: int | None = None
    """Number of the step at which the trial diverged and was stopped; None if it did not diverge."""


@dataclass(frozen=True)
class LearningRateRange:
    """Results of the probe, in ascending order of learning rate. Printing the result shows a table with conclusions."""

    trials: tuple[RateTrial, ...]
    experiment: str

    @property
    def working(self) -> tuple[RateTrial, ...]:
        """Trials whose loss decreased by more than two standard errors and by at least a tenth of the largest decrease."""
        complete = [t for t in self.trials if t.diverged_at is None]
        largest = max((t.fall for t in complete), default=0.0)
        return tuple(t for t in complete if t.fall > 2 * t.error and t.fall >= MIN_FRACTION_OF_LARGEST_DECREASE * largest)

    @property
    def best(self) -> float | None:
        """Learning rate with the lowest final loss; None if training worked at no learning rate."""
        return min(self.working, key=lambda t: t.loss).learning_rate if self.working else None

    @property
    def diverges_from(self) -> float | None:
        """Lowest learning rate at and above which all trials diverged; None if the trial with the highest learning rate did not
        diverge."""
        lowest_rate = None
        for trial in reversed(self.trials):
            if trial.diverged_at is None:
                break
            lowest_rate = trial.learning_rate
        return lowest_rate

    def __str__(self) -> str:
        header = f"{'learning rate':>13}  {'loss':>11}  {'fall':>11}"
        working_rates = {t.learning_rate for t in self.working}
        rows = [_table_row(t, t.learning_rate in working_rates) for t in self.trials]
        return "\n".join([header, *rows, "", *self._conclusions()])

    def _conclusions(self) -> Iterator[str]:
        rates = [t.learning_rate for t in self.working]
        if not rates:
            yield "At none of these learning rates did the loss decrease: look for a bug in the step, or try other learning rates."
        else:
            yield f"Training works from {min(rates):.3g} to {max(rates):.3g}; the final loss is lowest at {self.best:.3g}."
            if self.best == self.trials[-1].learning_rate:
                yield "That is the highest learning rate tried: try higher ones."
            if self.best == self.trials[0].learning_rate:
                yield "That is the lowest learning rate tried: try lower ones."
        limit = self.diverges_from
        yield (f"It diverges at {limit:.3g} and above." if limit is not None else "The highest learning rate does not diverge.")
        yield f"Logged as the study {self.experiment!r}."


def learning_rate_range(
    step: StepFunction,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    low: float = 1e-5,
    high: float = 1.0,
    trials: int = 16,
    steps: int = 100,
    warmup_steps: int = 0,
    max_train_steps: int | None = None,
    reset: Callable[[], object] | None = None,
    params: Mapping[str, object] | None = None,
    also: Sequence[Stateful] = (),
    experiment: str = "learning-rate probe",
    tracking_uri: str | None = None,
) -> LearningRateRange:
    """Train briefly at each of several constant learning rates, always from the same state and on the same batches.

        print(learning_rate_range(step, model, optimizer, low=1e-4, high=1.0))

    The learning rates are evenly spaced on a log scale. A trial is stopped as soon as it diverges. First, the probe runs the
    same steps at a learning rate of 0, because it measures the decrease of the loss relative to the untrained model on the same
    batches. Each learning rate is recorded as one MLflow run with the param `learning_rate`, the objective `probe/loss`, the
    status diverged if the trial diverged, and everything that `TuningLogger` logs.

    All trials see the same batches if `step` draws them with the global generators of PyTorch, Python or NumPy. The iterator of
    a loader continues from one trial to the next, unless `reset` creates a new iterator. The probe reads the loss after every
    step, which waits for the device.

    Args:
        step: function that makes one training step with `optimizer.step()` and returns the loss. The probe overrides any scheduler.
        model, optimizer: the objects that `step` trains; they are restored afterwards. The learning rate is that of the first
            parameter group; the rates of the other groups keep their ratio to it.
        low, high: lowest and highest learning rate to try.
        trials: number of learning rates to try.
        steps: optimizer steps per trial.
        warmup_steps: steps of a linear warmup from 0.
        max_train_steps: number of steps of the actual training, from which `advisor analyze` derives a warmup.
        reset: function called before each trial to restart the data.
        params: further hyperparameters to log with every run.
        also: further objects with `state_dict` and `load_state_dict` that a step changes: scheduler, scaler, averaged weights.
        experiment: MLflow experiment for the study; runs that it already contains are kept.
        tracking_uri: address of the MLflow store; None: MLflow's setting, or `sqlite:///mlflow.db` in the working directory.

    Raises:
        TypeError, ValueError: an argument is invalid.
        Exceptions of the steps propagate after everything is restored.

    Source: the section "Identifying unstable workloads" of the Deep Learning Tuning Playbook (a sweep, and the losses just
    above the best learning rate).
    """
    check_functions(step=step, **({} if reset is None else {"reset": reset}))
    check_count("warmup_steps", warmup_steps, 0)
    check_counts(trials=trials, steps=steps, max_train_steps=max_train_steps)
    if not 0 < low < high or not math.isfinite(high):
        raise ValueError(f"low and high must be positive and in this order, not {low:g} and {high:g}")
    rates = [low * (high / low) ** (i / max(trials - 1, 1)) for i in range(trials)]
    with ProbeBench(
        model, optimizer, probe="learning-rate", params=params, also=also, experiment=experiment, tracking_uri=tracking_uri
    ) as bench:
        sweep = _LearningRateSweep(bench, step, reset, steps, warmup_steps, max_train_steps)
        results = []
        for i, rate in enumerate(rates, 1):
            bench.show_progress(f"learning rate {rate:.3g}, {i} of {trials}")
            results.append(sweep.trial(rate))
    return LearningRateRange(tuple(results), experiment)


class _LearningRateSweep:
    """Runs the trials of one probe, all on the same batches."""

    def __init__(
        self,
        bench: ProbeBench,
        step: StepFunction,
        reset: Callable[[], object] | None,
        steps: int,
        warmup_steps: int,
        planned: int | None,
    ) -> None:
        self._bench, self._step, self._reset = bench, step, reset
        self._steps, self._warmup_steps, self._planned = steps, warmup_steps, planned
        self._tenth = max(steps // 10, 1)
        bench.show_progress("untrained")
        bench.reset()
        self._untrained = self._losses(0.0, None)[0]
        if not all(map(math.isfinite, self._untrained)):
            raise ValueError("the loss of the untrained model is not finite: look for a bug in the step")

    def trial(self, rate: float) -> RateTrial:
        with self._bench.trial({"learning_rate": rate}, PROBE_LOSS_METRIC, rate=rate, max_train_steps=self._planned) as log:
            losses, diverged_at = self._losses(rate, log)
            log.close("complete" if diverged_at is None else "diverged")
        last_losses = losses[-self._tenth :]
        last_mean = statistics.fmean(last_losses)
        if diverged_at is not None:
            return RateTrial(rate, last_mean, -math.inf, 0.0, diverged_at)
        decreases = [a - b for a, b in zip(self._untrained[-len(last_losses) :], last_losses, strict=True)]
        error = statistics.stdev(decreases) / math.sqrt(len(decreases)) if len(decreases) > 1 else 0.0
        return RateTrial(rate, last_mean, statistics.fmean(decreases), error)

    def _losses(self, rate: float, log: TuningLogger | None) -> tuple[list[float], int | None]:
        if self._reset is not None:
            self._reset()
        losses: list[float] = []
        for i in range(self._steps):
            self._bench.rates.set_rate(warmup_rate(rate, i, self._warmup_steps))
            loss = self._step()
            losses.append(read_number(loss))
            if log is None:
                continue
            log.step(loss)
            diverged = self._has_diverged(losses)
            if diverged or (i + 1) % self._tenth == 0 or i + 1 == self._steps:
                log.evaluate({PROBE_LOSS_METRIC: statistics.fmean(losses[-self._tenth :])})
            if diverged:
                return losses, i
        return losses, None

    def _has_diverged(self, losses: list[float]) -> bool:
        if not math.isfinite(losses[-1]):
            return True
        untrained, average = statistics.fmean(self._untrained), statistics.fmean(losses[-self._tenth :])
        return len(losses) >= self._tenth and untrained > 0 and average > DIVERGENCE_LOSS_RATIO * untrained


def _table_row(trial: RateTrial, works: bool) -> str:
    row = f"{trial.learning_rate:>13.3g}  {trial.loss:>11.4g}"
    if trial.diverged_at is not None:
        return f"{row}  diverged at step {trial.diverged_at}"
    return f"{row}  {trial.fall:>11.4g}" + ("" if works else "  hardly falls")
