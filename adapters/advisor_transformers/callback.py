"""`TuningCallback`: one line in a training with the Transformers Trainer for its run to be diagnosed."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from advisor import contract
from advisor_logging.outcome import Direction
from advisor_pytorch import TuningLogger
from advisor_pytorch.frameworks import CheckpointFiles, Evaluations, check_settings, guard_training
from advisor_pytorch.steps.device import Value, detached_copy
from advisor_transformers import backward
from advisor_transformers.arguments import hyperparameters

logger = logging.getLogger("advisor")


class TuningCallback(TrainerCallback):
    """Records a training with the Transformers Trainer, through `advisor_pytorch.TuningLogger`, which says what is logged.

        trainer = Trainer(model, arguments, ..., callbacks=[TuningCallback("eval_loss")])
        trainer.train()

    | logged | from |
    |---|---|
    | `train/loss` | the backward pass, each optimizer step, as it is trained on |
    | evaluations | `Trainer.evaluate`, names and step as Transformers has them: `eval_loss`, at `global_step` |
    | params | the arguments that are hyperparameters, and what the model's configuration sets otherwise than its class does |
    | `advisor.max_train_steps`, `advisor.seed`, `advisor.batch_size`, ... | the arguments |
    | `advisor.checkpoints` | the checkpoints that are left at the end, and the one that `load_best_model_at_end` chose |
    | `train/data_wait_s` | from the end of a step, its logging and its evaluation to the beginning of the next |

    Where Transformers' own `MLflowCallback` is active, all of it goes into its run. The Trainer does not tell its callbacks of an
    exception: it is noted at the exit of the script; where you catch it yourself, use the callback as a context:

        with TuningCallback("eval_loss") as tuning:
            Trainer(model, arguments, ..., callbacks=[tuning]).train()
    """

    def __init__(
        self,
        objective: str,
        *,
        direction: Direction = "minimize",
        params: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> None:
        """Record every training of the trainers that have this callback.

        Args:
            objective: name of the metric that trials are compared by, as `Trainer.evaluate` gives it: `eval_loss`.
            direction: "minimize" or "maximize".
            params: the hyperparameters of the trial, by name; None: those of the arguments and of the model's configuration.
            settings: any other argument of `TuningLogger`, such as `experiment`, `tracking_uri`, `study`, `run_id` or
                `checkpoints`; what is given here is not asked of the Trainer.

        Raises:
            TypeError, ValueError: an argument is not what it must be.
        """
        check_settings("TuningCallback", params, objective, direction, settings)
        self._objective, self._direction, self._params, self._settings = objective, direction, params, settings
        self._training = False
        self._asked: float | None = None
        self._log: TuningLogger | None = None
        self._last: TuningLogger | None = None

    @property
    def recording(self) -> TuningLogger | None:
        """What records the training; None before it has begun."""
        return self._log or self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    # The beginning and the end.

    @override
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A training begins; other callbacks may still have to begin their MLflow run."""
        self._close(None)  # the training before ended by an exception that nobody told
        self._training = True

    @override
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to record, before the first epoch."""
        self._begin(args, state, kwargs)
        self._asked = time.perf_counter()

    def _begin(self, args: TrainingArguments, state: TrainerState, given: Mapping[str, Any]) -> None:
        if not self._training or self._log is not None:
            return
        model, optimizer = given["model"], given["optimizer"]
        settings: dict[str, Any] = {
            "max_train_steps": state.max_steps if state.max_steps > 0 else None,
            "seed": args.seed,
            "batch_size": args.train_batch_size * args.gradient_accumulation_steps,
            "run_name": args.run_name,
            "scheduler": given.get("lr_scheduler"),
        }
        self._log = self._last = TuningLogger(
            model,
            optimizer,
            params=hyperparameters(args, model) if self._params is None else self._params,
            objective=self._objective,
            direction=self._direction,
            start_step=state.global_step,
            **(settings | self._settings),
        )
        self._losses: list[Value] = []
        self._evaluations, self._files = Evaluations(self._objective), CheckpointFiles()
        backward.listen(self._heard)
        loader: Any = given.get("train_dataloader")
        micro_batches = args.gradient_accumulation_steps
        self._log.loaders(train=loader)
        if micro_batches > 1:
            self._log.note({contract.TAG_MICRO_BATCHES: str(micro_batches)})
            with guard_training("the length of an epoch"):
                self._log.note({contract.TAG_STEPS_PER_EPOCH: str(math.ceil(len(loader) / micro_batches))})

    @override
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the run."""
        if self._log is not None and not self._settings.get("checkpoints"):
            with guard_training("the checkpoints"):
                self._note_checkpoints(args, state)
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        log, self._log, self._training = self._log, None, False
        if log is not None:
            backward.ignore(self._heard)
            log.close(error=error)

    # Training.

    def _heard(self, loss: torch.Tensor) -> None:
        with guard_training("the loss"):
            self._losses.append(detached_copy(loss))
            if self._log is not None:
                self._log.show(loss)

    @override
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The batches of the next optimizer step are there."""
        if self._log is not None and self._asked is not None:
            self._log.add_batch(time.perf_counter() - self._asked)

    @override
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the loss of an optimizer step."""
        if self._log is None:
            return
        losses, self._losses = self._losses, []
        if losses:
            with guard_training("the loss"):
                examples = args.train_batch_size * len(losses)
                self._log.step(sum(losses[1:], start=losses[0]), examples=examples)
        self._asked = time.perf_counter()

    @override
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Logging is no waiting for data."""
        self._asked = time.perf_counter()

    @override
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the results of an evaluation."""
        self._begin(args, state, kwargs)
        metrics = kwargs.get("metrics")
        if self._log is None or not metrics:
            return
        with guard_training("an evaluation"):
            if not self._evaluations:
                self._log.loaders(valid=kwargs.get("eval_dataloader"))
            results = {name: value for name, value in metrics.items() if name != "epoch"}
            self._evaluations.add(state.global_step, results)
            self._log.evaluate(results, step=state.global_step)
        self._asked = time.perf_counter()

    # Checkpoints.

    @override
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint was written."""
        if self._log is not None:
            with guard_training("a checkpoint"):
                self._files.look([_checkpoint(args, state.global_step)], state.global_step)
            self._log.evaluate({})  # saving is no training
        self._asked = time.perf_counter()

    def _note_checkpoints(self, args: TrainingArguments, state: TrainerState) -> None:
        assert self._log is not None
        left = [path for path in self._files.paths if os.path.isdir(path)]
        if not left:
            return
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        policy = "all" if args.save_total_limit is None else "best-1+last" if args.load_best_model_at_end else "last"
        self._log.note({contract.TAG_CHECKPOINTS: self._files.describe(policy, left, best, self._evaluations)})


def _checkpoint(args: TrainingArguments, step: int) -> str:
    return os.path.join(args.output_dir or "", f"checkpoint-{step}")
