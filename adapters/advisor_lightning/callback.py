"""`TuningCallback`: one line in a Lightning training for its run to be diagnosed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from advisor import contract
from advisor_lightning import trainer_facts
from advisor_lightning.fetch_timer import FetchTimer
from advisor_lightning.library import Callback, LightningModule, Trainer
from advisor_lightning.metrics import FreshMetrics, loss_of
from advisor_logging.outcome import Direction
from advisor_pytorch import TuningLogger
from advisor_pytorch.frameworks import CheckpointFiles, Evaluations, check_settings, guard_training
from advisor_pytorch.steps.loader import count_examples

logger = logging.getLogger("advisor")


class TuningCallback(Callback):
    """Records a Lightning training for the tuning advisor, through `advisor_pytorch.TuningLogger`, which says what is logged.

        trainer = Trainer(max_epochs=10, callbacks=[TuningCallback("val_error")])
        trainer.fit(module, train_loader, valid_loader)

    | logged | from |
    |---|---|
    | `train/loss` | what `training_step` returns, each batch |
    | evaluations | what was logged in validation, and by epoch in training, at the step that Lightning's loggers give it |
    | params | the module's `hparams`: numbers, words and lists of them, nested ones as `optimizer/lr` |
    | `advisor.max_train_steps`, `advisor.seed`, ... | the trainer, `seed_everything` |
    | `advisor.checkpoints` | what every `ModelCheckpoint` kept, and its choice |
    | `train/data_wait_s` | what the trainer tells its profiler |

    Where the trainer has an `MLFlowLogger`, all of it goes into that logger's run, and `experiment` is not used, unless `run_id` or
    another `tracking_uri` is given. A second `fit` of
    the same trainer goes on in the same run; a training resumed from a checkpoint begins a new one, unless `run_id` is given.
    """

    def __init__(
        self,
        objective: str,
        *,
        direction: Direction = "minimize",
        params: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> None:
        """Record every `fit` of the trainers that have this callback.

        Args:
            objective: name of the metric that trials are compared by, as given to `self.log`.
            direction: "minimize" or "maximize".
            params: the hyperparameters of the trial, by name; None: the module's `hparams`.
            settings: any other argument of `TuningLogger`, such as `experiment`, `tracking_uri`, `study`, `run_id` or
                `checkpoints`; what is given here is not asked of the trainer.

        Raises:
            TypeError, ValueError: an argument is not what it must be.
        """
        check_settings("TuningCallback", params, objective, direction, settings)
        self._objective, self._direction, self._params, self._settings = objective, direction, params, settings
        self._log: TuningLogger | None = None
        self._last: tuple[Trainer, TuningLogger] | None = None

    @property
    def recording(self) -> TuningLogger | None:
        """What records the training; None before it has begun."""
        return self._log or (self._last[1] if self._last else None)

    # The beginning and the end.

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to record."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return  # as Lightning's own loggers
        if not trainer.optimizers:
            logger.warning("advisor: the training has no optimizer, so nothing is recorded")
            return
        settings = self._ask(trainer) | self._settings | self._run_to_join(trainer)
        params = trainer_facts.hyperparameters(pl_module) if self._params is None else self._params
        if not params:
            logger.warning("advisor: no hyperparameters: call self.save_hyperparameters() or give params")
        self._log = TuningLogger(
            pl_module,
            trainer.optimizers,
            params=params,
            objective=self._objective,
            direction=self._direction,
            start_step=trainer_facts.steps_made(trainer),
            **settings,
        )
        self._last = (trainer, self._log)
        self._metrics, self._evaluations, self._files = FreshMetrics(), Evaluations(self._objective), CheckpointFiles()
        self._files.look(trainer_facts.checkpoint_paths(trainer), None)
        self._saved_at: int | None = None
        self._paused = False
        self._timer: FetchTimer | None = None
        with guard_training("what the trainer knows"):
            self._log.note(trainer_facts.facts(trainer))
            self._log.loaders(
                train=trainer.train_dataloader, valid=trainer_facts.single_loader(trainer.val_dataloaders)
            )
            self._timer = FetchTimer(trainer.profiler, self._before_fetch, self._log.add_batch)  # type: ignore[attr-defined]

    def _ask(self, trainer: Trainer) -> dict[str, Any]:
        """Arguments of `TuningLogger` that the trainer knows."""
        known: dict[str, Any] = {}
        with guard_training("the number of steps"):
            known["max_train_steps"] = trainer_facts.max_train_steps(trainer)
        with guard_training("the seed"):
            known["seed"] = trainer_facts.seed()
        with guard_training("the schedule"):
            known["scheduler"] = [config.scheduler for config in trainer.lr_scheduler_configs] or None
        return known

    def _run_to_join(self, trainer: Trainer) -> dict[str, Any]:
        """The run of the trainer's MLFlowLogger, or that of an earlier `fit` of the same trainer; empty for a new one."""
        if self._settings.get("run_id") is not None:
            return {}
        with guard_training("the run of the MLFlowLogger"):
            run = trainer_facts.mlflow_run(trainer) if trainer.is_global_zero else {}
            if run and self._settings.get("tracking_uri") in (None, run["tracking_uri"]):
                return run
        if self._last is not None and self._last[0] is trainer and trainer.global_step:
            return {"run_id": self._last[1].run_id}
        return {}

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run."""
        self._end(trainer, None)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run as what the exception says."""
        self._end(trainer, exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run, if nothing else did."""
        self._end(trainer, None)

    def _end(self, trainer: Trainer, error: BaseException | None) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        with guard_training("the checkpoints"):
            self._look_for_checkpoints(trainer)
            kept = trainer_facts.checkpoint_policy(trainer)
            if kept is not None and not self._settings.get("checkpoints"):
                policy, chosen = kept
                paths = trainer_facts.checkpoint_paths(trainer)
                log.note({contract.TAG_CHECKPOINTS: self._files.describe(policy, paths, chosen, self._evaluations)})
        if self._timer is not None:
            self._timer.stop()
        log.close(error=error)

    # Training.

    def _before_fetch(self) -> None:
        if self._paused and self._log is not None:
            self._paused = False
            self._log.evaluate({})  # what came before was no training

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        if self._log is not None:
            self._log.show(loss)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """EarlierRun each batch."""
        if self._log is not None and self._saved_at is not None:
            with guard_training("a checkpoint"):
                self._look_for_checkpoints(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss of a batch."""
        if self._log is None:
            return
        with guard_training("the loss"):
            micro_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            loss = loss_of(outputs, micro_batches)
            if loss is not None:
                self._log.step(loss, examples=count_examples(batch))
            if trainer.is_last_batch:  # what follows by epoch is new
                self._metrics.mark(trainer.callback_metrics)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was logged by epoch."""
        self._evaluate(trainer)

    # Evaluation and checkpoints.

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is logged from here on is of the validation."""
        if self._log is not None:
            with guard_training("an evaluation"):
                self._metrics.mark(trainer.callback_metrics)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was logged in the validation."""
        if not trainer.sanity_checking:
            self._evaluate(trainer)

    def _evaluate(self, trainer: Trainer) -> None:
        if self._log is None:
            return
        with guard_training("an evaluation"):
            new = self._metrics.take(trainer.callback_metrics)
            self._evaluations.add(self._step(), new)
            self._log.evaluate(new)
            self._paused = True

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written; its path is known later."""
        if self._log is not None:
            self._saved_at = self._step()
            self._paused = True

    def _look_for_checkpoints(self, trainer: Trainer) -> None:
        if self._saved_at is not None:
            self._files.look(trainer_facts.checkpoint_paths(trainer), self._saved_at)
            self._saved_at = None

    def _step(self) -> int:
        """The last step made, as evaluations are logged at it."""
        return max(self._log.steps - 1, 0) if self._log is not None else 0
