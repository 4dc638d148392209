"""`TuningCallback`, a Lightning callback that records a training run for Tuning Advisor."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from typing_extensions import override

from advisor_lightning import trainer_facts
from advisor_lightning.trainer_facts import Callback, FetchTimer, LightningModule, Trainer, UnseenMetrics, step_loss
from advisor_pytorch.frameworks import FrameworkCallback, plain_values, warn_on_training_error
from advisor_pytorch.steps.loader import count_examples

logger = logging.getLogger("advisor")


class TuningCallback(FrameworkCallback, Callback):
    """Records a Lightning training run for Tuning Advisor, including everything that `advisor_pytorch.TuningLogger` logs.

        seed_everything(args.seed)
        trainer = Trainer(max_steps=2000, callbacks=[TuningCallback("val_error")])
        trainer.fit(module, train_loader, valid_loader)

    | logged | from |
    |---|---|
    | `train/loss` | the return value of `training_step`, each batch |
    | evaluations | metrics logged in validation, and by epoch in training, at the step of Lightning's loggers |
    | params | the module's `hparams`: numbers, texts and lists of these; nested values as `optimizer/lr` |
    | `advisor.max_train_steps`, `advisor.seed`, ... | the trainer, `seed_everything` |
    | `advisor.checkpoints` | the checkpoints of every `ModelCheckpoint`, and the best one by its criterion |
    | `train/data_wait_s` | the trainer's profiler |

    If the trainer has an `MLFlowLogger`, everything is logged to that logger's run and `experiment` is ignored, unless you set
    `run_id` or a different `tracking_uri`. A second `fit` of the same trainer continues the run of the first `fit`. A training
    that resumes from a checkpoint starts a new MLflow run, unless `run_id` is set. With `guard="stop"`, the callback stops the
    training after a validation if the trial can no longer beat the best trial of its study (`TuningLogger.should_stop`).
    """

    _last_trainer: Trainer | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return  # with `fast_dev_run`, Lightning disables its own loggers too
        if not trainer.optimizers:
            logger.warning("advisor: the training has no optimizer, so the advisor records nothing")
            return
        trainer_settings = self._settings_of_trainer(trainer)
        run = self._run_to_continue(trainer)
        params = plain_values(pl_module.hparams) if self._params is None else self._params
        if not params:
            logger.warning("advisor: found no hyperparameters: call self.save_hyperparameters() or pass params")
        steps_made = trainer.global_step // len(trainer.optimizers)  # Lightning counts the steps of all optimizers together
        log = self._start_recording(pl_module, trainer.optimizers, params, steps_made, trainer_settings, **run)
        self._last_trainer = trainer
        self._metrics = UnseenMetrics()
        self._checkpoints.record_files(trainer_facts.checkpoint_paths(trainer), None)
        self._saved_at: int | None = None
        self._is_paused = False
        self._timer: FetchTimer | None = None
        with warn_on_training_error("facts about the trainer"):
            log.note(trainer_facts.trainer_tags(trainer))
            log.loaders(train=trainer.train_dataloader, valid=trainer_facts.single_loader_or_none(trainer.val_dataloaders))
            self._timer = FetchTimer(trainer.profiler, self._restart_clock_after_pause, log.add_batch)  # type: ignore[attr-defined]

    def _settings_of_trainer(self, trainer: Trainer) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        with warn_on_training_error("the number of steps"):
            settings["max_train_steps"] = trainer_facts.max_train_steps(trainer)
        if (seed := os.environ.get("PL_GLOBAL_SEED", "")).isdecimal():  # set by `seed_everything`
            settings["seed"] = int(seed)
        with warn_on_training_error("the schedule"):
            settings["scheduler"] = [config.scheduler for config in trainer.lr_scheduler_configs] or None
        return settings

    def _run_to_continue(self, trainer: Trainer) -> dict[str, Any]:
        """Return arguments that continue the run of the trainer's MLFlowLogger, or of an earlier `fit`."""
        if self._settings.get("run_id") is not None:
            return {}
        with warn_on_training_error("the run of the MLFlowLogger"):
            run = trainer_facts.mlflow_run(trainer) if trainer.is_global_zero else {}
            if run and self._settings.get("tracking_uri") in (None, run["tracking_uri"]):
                return run
        if self._last_trainer is trainer and self._last_log is not None and trainer.global_step:
            return {"run_id": self._last_log.run_id}
        return {}

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_recording(trainer, None)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end_recording(trainer, exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end_recording(trainer, None)

    def _end_recording(self, trainer: Trainer, error: BaseException | None) -> None:
        log = self._log
        if log is None:
            return
        with warn_on_training_error("the checkpoints"):
            self._record_new_checkpoints(trainer)
            if (policy := trainer_facts.checkpoint_policy(trainer)) is not None:
                self._log_checkpoints(policy[0], trainer_facts.checkpoint_paths(trainer), policy[1])
        self._log = None
        if self._timer is not None:
            self._timer.stop()
        log.close(error=error)

    def _restart_clock_after_pause(self) -> None:
        if self._is_paused and self._log is not None:
            self._is_paused = False
            self._log.evaluate({})  # the time since the last step is not training time

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        if self._log is not None:
            self._log.show(loss)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._log is not None:
            self._log.show_batch(batch)
        if self._log is not None and self._saved_at is not None:
            with warn_on_training_error("a checkpoint"):
                self._record_new_checkpoints(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._log is None:
            return
        with warn_on_training_error("the loss"):
            micro_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            loss = step_loss(outputs, micro_batches)
            if loss is not None:
                self._log.step(loss, examples=count_examples(batch))
            if trainer.is_last_batch:  # Lightning logs the epoch's metrics after this call
                self._metrics.mark_all_seen(trainer.callback_metrics)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log_evaluation(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._log is not None:
            with warn_on_training_error("an evaluation"):
                self._metrics.mark_all_seen(trainer.callback_metrics)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log_evaluation(trainer)
        if self._log is not None and self._log.should_stop:
            trainer.should_stop = True

    def _log_evaluation(self, trainer: Trainer) -> None:
        if self._log is None:
            return
        with warn_on_training_error("an evaluation"):
            new = self._metrics.take_unseen(trainer.callback_metrics)
            self._checkpoints.add_evaluation(self._last_step(), new)
            self._log.evaluate(new)
            self._is_paused = True

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remember the current step, because Lightning is about to save a checkpoint at this step. The checkpoint's path is
        unknown until Lightning has written the file."""
        if self._log is not None:
            self._saved_at = self._last_step()
            self._is_paused = True

    def _record_new_checkpoints(self, trainer: Trainer) -> None:
        if self._saved_at is not None:
            self._checkpoints.record_files(trainer_facts.checkpoint_paths(trainer), self._saved_at)
            self._saved_at = None

    def _last_step(self) -> int:
        return max(self._log.steps - 1, 0) if self._log is not None else 0
