"""Measures instability of the loss in the first training steps: see `early_instability`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from advisor_pytorch.checkpoints import Stateful
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.probes.bench import ProbeBench, StepFunction, check_counts, check_functions, read_number, warmup_rate
from advisor_pytorch.probes.learning_rate import PROBE_LOSS_METRIC
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.validation import check_count

LOSS_AVERAGING_STEPS = 10
"""Number of consecutive steps over which losses are averaged. A rise of the loss that lasts fewer steps is ignored, because
even the playbook's shortest warmup would not prevent it."""
MAX_NONFINITE_LOSSES = 3
"""A trial stops after `MAX_NONFINITE_LOSSES` consecutive non-finite losses."""


@dataclass(frozen=True, slots=True)
class StartTrial:
    """Result of the first steps at one learning rate. Each loss, except for `first`, is a mean over ten steps."""

    learning_rate: float
    multiple: float
    """Ratio of the trial's learning rate to the best learning rate known before the probe."""
    first: float
    """Loss before the first training step of the trial."""
    highest: float
    highest_step: int
    """Last of the ten training steps over which the average loss is highest."""
    last: float
    diverged_at: int | None = None
    """Number of the first step with a non-finite loss; None if all losses are finite."""


@dataclass(frozen=True)
class EarlyInstability:
    """Results of the probe, in ascending order of learning rate. Printing the result shows a table; `advisor analyze` tests
    whether a rise of the loss exceeds noise."""

    trials: tuple[StartTrial, ...]
    experiment: str

    @property
    def diverges_from(self) -> float | None:
        """Lowest learning rate at which the loss became non-finite; None if the loss stayed finite at all learning rates."""
        return min((t.learning_rate for t in self.trials if t.diverged_at is not None), default=None)

    def __str__(self) -> str:
        header = f"{'learning rate':>13}  {'times best':>10}  {'first':>10}  {'highest':>10}  {'at step':>7}  {'last':>10}"
        return "\n".join([header, *map(_table_row, self.trials), "", *self._conclusions()])

    def _conclusions(self) -> Iterator[str]:
        risen_trials = [t for t in self.trials if t.diverged_at is None and t.highest > t.first]
        if self.diverges_from is not None:
            yield f"The loss becomes non-finite at learning rate {self.diverges_from:.3g} and above."
        for trial in risen_trials:
            yield f"At {trial.learning_rate:.3g} it stood at {trial.highest:.4g} for ten steps, above {trial.first:.4g} at first."
        if not risen_trials and self.diverges_from is None:
            yield "At none of these learning rates did the average loss over ten steps rise above its first value."
        yield f"Logged as the study {self.experiment!r}: `advisor analyze` tells a rise from noise and recommends changes."


def early_instability(
    step: StepFunction,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    evaluate: Callable[[], ScalarValue] | None = None,
    learning_rate: float | None = None,
    multiples: Sequence[float] = (0.5, 1.0, 2.0, 5.0, 10.0),
    steps: int = 500,
    warmup_steps: int = 0,
    max_train_steps: int | None = None,
    reset: Callable[[], object] | None = None,
    params: Mapping[str, object] | None = None,
    also: Sequence[Stateful] = (),
    experiment: str = "early-instability probe",
    tracking_uri: str | None = None,
) -> EarlyInstability:
    """Train for a few hundred steps (500 by default) at several multiples of the best learning rate so far, and evaluate at
    every step.

        print(early_instability(step, model, optimizer, evaluate=loss_on_a_fixed_batch, learning_rate=0.1))

    In some models, the loss blows up in the first steps and recovers, and then training is slow. A training that is evaluated
    less often than at every step misses such a blow-up. To find the learning rate at which instability begins, the probe tries
    each multiple of `learning_rate` from the same state and on the same batches (see `learning_rate_range`). Each learning rate
    is recorded as one MLflow run with the param `learning_rate`, the objective `probe/loss` at every step (step 0 is before the
    first update), the status diverged if the loss became non-finite, and everything that `TuningLogger` logs.

    Args:
        step: function that makes one training step with `optimizer.step()` and returns the loss. The probe overrides any
            scheduler.
        model, optimizer: the objects that `step` trains; they are restored afterwards.
        evaluate: function that returns the loss on fixed batches, called at every step. None: the step's training loss is used.
        learning_rate: current best learning rate; None: the optimizer's learning rate.
        multiples: factors by which the learning rate is multiplied. With fewer than five factors, a best value at either end
            can be chance.
        steps: optimizer steps per trial.
        warmup_steps: steps of a linear warmup from 0, which shows whether a warmup removes the instability.
        max_train_steps, reset, params, also, experiment, tracking_uri: see `learning_rate_range`.

    Raises:
        TypeError, ValueError: an argument is invalid.
        Exceptions of the steps or of `evaluate` propagate after everything is restored.

    Source: the section "How can optimization failures be debugged and mitigated?" of the Deep Learning Tuning Playbook.
    """
    functions = {"step": step, "evaluate": evaluate, "reset": reset}
    check_functions(**{name: f for name, f in functions.items() if f is not None or name == "step"})
    check_count("warmup_steps", warmup_steps, 0)
    check_counts(steps=steps, max_train_steps=max_train_steps)
    if not multiples or not all(m > 0 and math.isfinite(m) for m in multiples):
        raise ValueError(f"multiples must be positive numbers, not {list(multiples)}")
    with ProbeBench(
        model, optimizer, probe="early-instability", params=params, also=also, experiment=experiment, tracking_uri=tracking_uri
    ) as bench:
        best_rate = bench.rates.first_rate if learning_rate is None else learning_rate
        if not (best_rate > 0 and math.isfinite(best_rate)):
            raise ValueError(f"learning_rate must be positive, not {best_rate:g}")
        runner = _StartTrialRunner(bench, step, evaluate, reset, steps, warmup_steps, max_train_steps)
        results: list[StartTrial] = []
        for multiple in sorted(multiples):
            bench.show_progress(f"learning rate {best_rate * multiple:.3g}, {len(results) + 1} of {len(multiples)}")
            results.append(runner.trial(best_rate * multiple, multiple))
    return EarlyInstability(tuple(results), experiment)


@dataclass(frozen=True)
class _StartTrialRunner:
    bench: ProbeBench
    step: StepFunction
    evaluate: Callable[[], ScalarValue] | None
    reset: Callable[[], object] | None
    steps: int
    warmup_steps: int
    planned: int | None

    def trial(self, rate: float, multiple: float) -> StartTrial:
        with self.bench.trial(
            {"learning_rate": rate},
            PROBE_LOSS_METRIC,
            rate=rate,
            start_step=1,  # step 0 is the evaluation before the first update
            max_train_steps=self.planned,
        ) as log:
            losses = self._loss_of_each_step(log, rate)
            diverged = not math.isfinite(losses[-1])
            log.close("diverged" if diverged else "complete")
        first_step = 0 if self.evaluate is not None else 1
        finite_losses = [loss for loss in losses if math.isfinite(loss)]
        if not finite_losses:
            return StartTrial(rate, multiple, math.nan, math.nan, first_step, math.nan, first_step)
        averages = [
            statistics.fmean(finite_losses[i : i + LOSS_AVERAGING_STEPS])
            for i in range(1, max(len(finite_losses) - LOSS_AVERAGING_STEPS, 1) + 1)
        ]
        averages = averages if len(finite_losses) > 1 else finite_losses
        highest_index = max(range(len(averages)), key=averages.__getitem__)
        highest_step = min(highest_index + LOSS_AVERAGING_STEPS, len(finite_losses) - 1) + first_step
        diverged_at = len(finite_losses) + first_step if diverged else None
        return StartTrial(rate, multiple, finite_losses[0], averages[highest_index], highest_step, averages[-1], diverged_at)

    def _loss_of_each_step(self, log: TuningLogger, rate: float) -> list[float]:
        """Return the loss after each step; with an `evaluate` function, the first entry is the loss before the first step."""
        if self.reset is not None:
            self.reset()
        losses: list[float] = []
        if self.evaluate is not None:
            losses.append(_log_loss(log, self.evaluate()))
        for i in range(self.steps):
            self.bench.rates.set_rate(warmup_rate(rate, i, self.warmup_steps))
            loss = self.step()
            log.step(loss)
            losses.append(_log_loss(log, loss if self.evaluate is None else self.evaluate()))
            if len(losses) >= MAX_NONFINITE_LOSSES and not any(map(math.isfinite, losses[-MAX_NONFINITE_LOSSES:])):
                break
        return losses


def _log_loss(log: TuningLogger, loss: ScalarValue) -> float:
    log.evaluate({PROBE_LOSS_METRIC: loss})
    return read_number(loss)


def _table_row(trial: StartTrial) -> str:
    row = f"{trial.learning_rate:>13.3g}  {trial.multiple:>10.3g}  {trial.first:>10.4g}  {trial.highest:>10.4g}  "
    last_columns = f"not finite from step {trial.diverged_at:,} on" if trial.diverged_at is not None else f"{trial.last:>10.4g}"
    return f"{row}{trial.highest_step:>7,}  {last_columns}"
