"""`TuningLogger`, which records a plain PyTorch training loop."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import torch

from advisor import contract
from advisor.contract.guard_file import GuardVerdict
from advisor.contract.redact import one_line_error
from advisor_logging.checkpoints import RunInfo
from advisor_logging.guard_process import Guard, GuardMode
from advisor_logging.run_description import RunSettings
from advisor_logging.spool import working_directory
from advisor_pytorch import validation
from advisor_pytorch.autopsy.watch import AutopsyMode
from advisor_pytorch.checkpoints import CheckpointSettings, LoadFunction, SaveFunction, Stateful, TrainingState
from advisor_pytorch.distributed.rank_facts import current_world_size
from advisor_pytorch.facts import run_tags
from advisor_pytorch.facts.optimizers import unwrap_optimizer
from advisor_pytorch.outcome import Direction, RunOutcome
from advisor_pytorch.run import TrainingRun
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.loader import MeasuredLoader
from advisor_pytorch.steps.rows import evaluation_chunk

Batch = TypeVar("Batch")


class BestEvaluation(NamedTuple):
    """Best evaluation of a run: its optimizer step, the objective's value, and the checkpoint of that step if there is one."""

    step: int
    value: float
    path: Path | None


class TuningLogger:
    """Records one training run for Tuning Advisor, without making the training loop wait for the device, the disk or the store.

        with TuningLogger(
            model, optimizer, params=params, objective="val/error", max_train_steps=2000, seed=args.seed
        ) as log:
            for x, y in log.batches(loader): # optional: measures the wait for data, counts examples
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                log.step(loss) # after optimizer.step(); no .item()
                if log.steps % 100 == 0:
                    log.evaluate({"val/error": ...})
                if log.should_stop: # only with guard="stop"
                    break
        print(log.best)

    A step is an optimizer step; the optimizer's hooks count steps from 0. The first 500 steps are logged individually, and
    later steps as the mean, `.min` and `.max` of windows of several steps (`advisor.contract.window_width`). The docstring of
    the module `advisor_pytorch` lists all metrics and tags. The run's logged hyperparameters are exactly `params`. The run ends
    with the `with` block, with a call of `close`, or when the interpreter exits.

    With several optimizers, the steps of the first optimizer are counted, and `train/grad_norm` covers all optimizers that made
    a step. If each parameter has its own optimizer, which makes its step during the backward pass, pass all these optimizers.
    With a `GradScaler`, the logged gradient norm is the norm of the unscaled gradient. Skipped steps are not logged as rows;
    the metric `train/skipped_steps` counts them. If a fused optimizer skips a step, the step numbers have a gap, because the
    skip is known only on the device; a step that another optimizer skips gets no number.

    If the loop creates a new optimizer for the same parameters, the steps of the new optimizer are logged from then on. A
    second logger on the same model closes the first logger. A value that cannot be logged never raises an error in the loop;
    one line at the end says how many such values there were.

    In distributed training (DDP, FSDP2), create a logger on every rank, in the same order on all ranks: rank 0 records one run,
    with the gradient norm of all shards and the examples of all ranks. A rank that has exited or has no logger does not block
    the other ranks (`advisor_pytorch.distributed.ranks`).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        params: Mapping[str, object],
        objective: str,
        direction: Direction | None = None,
        max_train_steps: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        checkpoints: int = 0,
        checkpoint_dir: str | os.PathLike[str] = "checkpoints",
        scheduler: Stateful | Sequence[Stateful] | None = None,
        scaler: Stateful | None = None,
        valid_loader: Iterable[Any] | None = None,
        classes: int | Sequence[str] | None = None,
        save: SaveFunction | None = None,
        load: LoadFunction | None = None,
        save_on_all_ranks: bool = False,
        resume: bool | str | os.PathLike[str] = False,
        study: str | None = None,
        experiment: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        start_step: int = 0,
        tracking_uri: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        close_timeout_s: float = 30.0,
        guard: GuardMode | None = None,
        autopsy: AutopsyMode = True,
    ) -> None:
        """Start recording a training run.

        Args:
            model: the trained model; described in tags and saved in checkpoints.
            optimizer: the model's optimizer, also inside a wrapper of Accelerate or Lightning, or a sequence of optimizers, the
                main one first. Each gets a hook before and after its steps until the run is closed.
            params: hyperparameters of the trial, by name.
            objective: name of the metric by which trials are compared; pass its values to `evaluate`.
            direction: "minimize" or "maximize"; None: as the objective's name says.
            max_train_steps: planned optimizer steps; a trial that ends earlier counts as stopped.
            batch_size: examples per call of `step` on this rank, if `batches` does not count them.
            seed: the seed that you set; None logs PyTorch's seed.
            checkpoints: number of best checkpoints (by the objective) to keep besides the last one; 0 keeps none. Only rank 0
                saves.
            checkpoint_dir: folder for checkpoints. Each run has a subfolder, which is found again when the run is continued.
            scheduler: learning-rate scheduler or schedulers, to be saved in checkpoints.
            scaler: gradient scaler, to be saved in checkpoints.
            valid_loader: loader of the evaluations; described in tags, never iterated.
            classes: names or number of the task's classes; None: from the data sets, if they declare classes.
            save: your own function that writes a checkpoint, a file or a folder, to the given path, instead of
                `advisor_pytorch.checkpoints.TrainingState`; its errors become warnings.
            load: function that restores what `save` wrote to the given path, to resume.
            save_on_all_ranks: call `save` on every rank with the same path, to gather a sharded state. Then every rank must
                call `evaluate` with the objective; rank 0's value decides.
            resume: continue from the last checkpoint of an earlier run. True: the newest interrupted run in `checkpoint_dir`
                with the same `params`, objective and seed, if there is one; or a path to a run's folder or checkpoint. Resuming
                restores the state, the step count and its MLflow run, but not the position of a loader. In distributed training
                every rank reads the checkpoint.
            study: name of the trial's study; None: the variable ADVISOR_STUDY, or none.
            experiment: MLflow experiment, created if missing; None: MLflow's own variables, or "Default".
            run_name: MLflow run name; None: MLflow chooses.
            run_id: MLflow run to continue; None: the run in MLFLOW_RUN_ID, the active run, or a new run; "new": always a new
                run.
            start_step: number of the first step, if a run is continued.
            tracking_uri: MLflow's store; None: MLflow's setting, or `sqlite:///mlflow.db` in the working directory.
            spool: folder for points that wait for the store; None: ADVISOR_SPOOL, or the user's state folder.
            close_timeout_s: maximum seconds for which `close` waits for the store.
            guard: let a background process compare this run with the others of its study during the training. "warn" logs one
                line if the run cannot become the best of its study, is not finite, diverges or is stuck. "stop" also sets
                `should_stop`; if the training then ends before `max_train_steps`, the run is recorded as pruned (or diverged),
                with the reason. Several ranks would have to stop at the same step, so "stop" only warns in distributed
                training.
            autopsy: at the first non-finite loss or gradient norm, store facts about it as an artifact of the run, for `advisor
                autopsy RUN`. The artifact contains no data, except with "batch": then it also holds the batches of that step.
                Healthy steps cost almost nothing (`advisor_pytorch.autopsy.watch`).

        Raises:
            TypeError, ValueError: an argument is invalid.
            OSError: the checkpoint folder or the spool folder is not writable, or `resume` is a path without a checkpoint.
        """
        optimizers = [unwrap_optimizer(one) for one in (optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,))]
        validation.check_training(model, optimizers)
        direction = validation.check_objective(params, objective, direction)
        validation.check_count("start_step", start_step, 0)
        validation.check_modes(guard, autopsy)
        classes = validation.count_classes(classes)
        counts = {contract.TAG_MAX_TRAIN_STEPS: max_train_steps, contract.TAG_BATCH_SIZE: batch_size}
        validation.check_counts(counts)
        state = TrainingState(model, optimizers, scheduler, scaler)
        run = self._run = TrainingRun(model, state, RunOutcome(objective, direction), max_train_steps)
        if batch_size is not None:
            counts[contract.TAG_BATCH_SIZE] = batch_size * run.ranks.world_size
        trained_parameters = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        checkpoint_settings = CheckpointSettings(
            checkpoints, Path(working_directory(), checkpoint_dir), save, load, save_on_all_ranks, resume
        )
        checkpoint_settings.check(model, start_step)
        self._parameters = {id(p) for p in (*model.parameters(), *trained_parameters)}
        self._close_earlier_loggers()
        param_texts = validation.plain_params(params)
        run_info = RunInfo(objective, direction, param_texts, seed)
        earlier_run = checkpoint_settings.find(run_id or os.environ.get("MLFLOW_RUN_ID"), run_info)
        start_step = checkpoint_settings.restore(earlier_run, state) or start_step
        continued_spool_id = None
        if earlier_run is not None and resume:
            run_id = run_id or earlier_run.run_info.run_id
            continued_spool_id = earlier_run.run_info.spool if run_id is None else None

        self._model, self._objective, self._close_timeout_s = model, objective, close_timeout_s
        self._closed, self._blocks = False, 0
        self._missing_objective = validation.MissingObjective(objective, run.warn)
        run.protect_user_tags(tag for tag, number in counts.items() if number is not None)
        settings = RunSettings(experiment, run_name, run_id, tracking_uri, spool, continued_spool_id)
        run.open_run(settings, checkpoint_settings, earlier_run, run_info)
        run.start_capture(optimizers, trained_parameters, start_step, batch_size, autopsy)
        self._recorder, self._capture, self._autopsy = run.recorder, run.capture, run.autopsy
        tags = run_tags.training_tags(objective, direction, seed, study, counts)
        run.describe(optimizers, tags, param_texts, scheduler=scheduler, classes=classes, valid_loader=valid_loader)
        run.ranks.begin(seed, checkpoints=checkpoints > 0 and (run.ranks.is_rank_0 or save_on_all_ranks))
        # Only rank 0 has a guard, so only it warns about the guard.
        mode = None if run.recorder is None else guard
        self._guard = Guard(mode, current_world_size, lambda: run.outcome.is_evaluated, run.warn)
        if run.recorder is not None and mode is not None:
            run.recorder.guard = self._guard
        atexit.register(self._close_at_exit)
        _open_loggers.add(self)

    def _close_earlier_loggers(self) -> None:
        """Close earlier loggers that still record this model, for example because the user runs a notebook cell again."""
        for earlier in list(_open_loggers):
            if earlier._is_active() and not self._parameters.isdisjoint(earlier._parameters):
                earlier._run.warn("second", "the run ends here: another TuningLogger now records its model")
                earlier.close()

    @property
    def steps(self) -> int:
        """Number of optimizer steps completed, including `start_step`."""
        return self._capture.next_step

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None before the run has been created in the background."""
        return self._recorder.run_id if self._recorder is not None else None

    @property
    def best(self) -> BestEvaluation | None:
        """The evaluation with the best value of the objective so far; None if there is none. Before the run is closed, the
        latest evaluations may not be included yet."""
        best = self._run.outcome.best
        return None if best is None else BestEvaluation(*best, self._run.keeper.checkpoints.path_at_step(best[0]))

    @property
    def latest(self) -> Path | None:
        """Path of the last checkpoint, from which the training can resume; None if there is none."""
        last = self._run.keeper.checkpoints.existing_set.last
        return None if last is None else last.path

    @property
    def verdict(self) -> GuardVerdict | None:
        """The latest verdict of `advisor guard` on this run, with the keys state, step, stop, message and at; None before the
        first verdict."""
        return self._guard.verdict

    @property
    def should_stop(self) -> bool:
        """True if the guard asks to stop the training: with `guard="stop"`, once the run can no longer become the best of its
        study or its objective is no longer finite. Reading `should_stop` never waits for the device, the disk or the store."""
        return self._guard.should_stop

    def batches(self, loader: Iterable[Batch]) -> MeasuredLoader[Batch]:
        """Return an iterable over the batches of the training loader; it measures the wait for each batch and counts the
        examples."""
        self.loaders(train=loader)
        if self._autopsy is None:
            return MeasuredLoader(loader, self._capture.add_batch)
        return MeasuredLoader(loader, self._capture.add_batch, self._autopsy.begin_epoch, self._autopsy.on_batch)

    def show_batch(self, batch: object) -> None:
        """Show the autopsy the batch of the next call of `step`; for loops that cannot use `batches`."""
        if self._autopsy is not None:
            self._autopsy.on_batch(batch)

    def loaders(self, *, train: Iterable[Any] | None = None, valid: Iterable[Any] | None = None) -> None:
        """Log facts about the loaders of training and evaluation; for loops that cannot use `batches`."""
        self._run.loaders(train, valid)

    def show(self, loss: torch.Tensor) -> None:
        """Inspect the autograd graph of the first loss; for loops that pass detached losses to `step`."""
        if (observations := self._run.observations) is not None and observations.wants_loss:
            observations.inspect_loss(loss)

    def step(self, loss: ScalarValue, *, grad_norm: ScalarValue | None = None, examples: int | None = None) -> None:
        """Log the training loss (a number, or a tensor with one element); call this after `optimizer.step()`.

        If a step has several micro-batches, call `step` for each of them; for the last one, call it after `optimizer.step()`.
        The logged loss of the step is the mean over its micro-batches. `examples` overrides `batch_size` for this call of
        `step`. Pass `grad_norm`, the step's gradient norm, only if the optimizer runs no hooks, as in a replayed CUDA graph:
        the argument states that an optimizer step was made.
        """
        if not self._capture.alive:
            return
        if (observations := self._run.observations) is not None and observations.wants_loss:
            observations.inspect_loss(loss)
        try:
            self._capture.add_loss(loss, grad_norm, examples)
        except Exception as error:
            self._run.refusals.count_refusal("loss", error)

    def evaluate(self, metrics: Mapping[str, ScalarValue], *, step: int | None = None) -> None:
        """Log the results of an evaluation (numbers, or tensors with one element) at the last completed step or at `step`.

        If checkpoints are saved and the objective is among the metrics, reading the objective's value waits for the device, and
        saving a checkpoint waits for the disk. No checkpoint is saved if the objective is not finite or `step` is an earlier
        step. The time since the last step counts as evaluation time, not as training time.
        """
        if not self._is_active():
            return
        try:
            step = max(self.steps - 1, 0) if step is None else validation.check_step(step)
            values = validation.check_metrics(metrics, self._run.refusals.add_metric)
            has_objective = self._objective in metrics
            if values:
                self._missing_objective.note_metrics({*values, self._objective} if has_objective else values)
        except Exception as error:
            self._run.refusals.count_refusal("evaluation", error)
            return
        if values:
            self._log_values(step, values)
        if has_objective and self._run.keeper.checkpoints.keep:
            self._run.save_checkpoint(step, values.get(self._objective))
        self._capture.restart_clock()

    def log_metrics(self, metrics: Mapping[str, ScalarValue]) -> None:
        """Log other metrics of the training, such as a mean reward, at the last completed step. A call of `log_metrics` does
        not count as an evaluation."""
        if not self._is_active():
            return
        try:
            values = validation.check_metrics(metrics, self._run.refusals.add_metric)
            if values:
                self._log_values(max(self.steps - 1, 0), values)
        except Exception as error:
            self._run.refusals.count_refusal("metrics", error)

    def _log_values(self, step: int, values: Mapping[str, ScalarValue]) -> None:
        self._capture.flush()
        self._run.submit_chunk(evaluation_chunk(step, time.time() * 1e3, values))

    def add_batch(self, waited_s: float, examples: int | None = None) -> None:
        """Record a batch; for loops that cannot use `batches`. waited_s: seconds spent waiting for the batch. examples: number
        of examples in it."""
        self._capture.add_batch(waited_s, examples)

    def note(self, facts: Mapping[str, object]) -> None:
        """Log tags under the names in `advisor.contract`; they replace values that the logger observed. All values are logged
        as texts."""
        if not self._is_active():
            return
        try:
            self._run.note(facts)
        except Exception as error:
            self._run.refusals.count_refusal("tag", error)

    def close(self, status: str | None = None, *, error: BaseException | None = None) -> None:
        """End the run, and wait at most `close_timeout_s` seconds until the store has all its data.

        `status` is one of `advisor.contract.STATUSES`; if it is None, it is derived from `error`, the exception that ended the
        training, else from the last loss, the last objective and the number of steps. Raises ValueError for a status that is
        not in `advisor.contract.STATUSES`.
        """
        if status is not None and status not in contract.STATUSES:
            raise ValueError(f"status must be one of {', '.join(contract.STATUSES)}, not {status!r}")
        if not self._is_active():
            return
        stopped_by = self.verdict if self.should_stop else None  # a later verdict did not stop this training
        try:
            self._capture.stop()
            self._closed = True
            atexit.unregister(self._close_at_exit)
            _open_loggers.discard(self)
            self._run.close(status, error, stopped_by, self._close_timeout_s)
        except Exception as problem:
            self._run.warn("close", f"the run could not be ended properly ({one_line_error(problem)})")

    def __enter__(self) -> Self:
        """Raises RuntimeError if the run is already closed. `with` blocks can be nested: the end of the outermost block closes the
        run."""
        if self._closed:
            raise RuntimeError("this TuningLogger is closed: create a new one, with run_id=... to continue its run")
        self._blocks += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blocks -= 1
        if self._blocks == 0 or error is not None:
            self.close(error=error)

    def _close_at_exit(self) -> None:
        """Close a run that is still open at the interpreter's exit; if an exception ended the script, record it."""
        is_interactive = hasattr(sys, "ps1")  # in an interactive session, the last exception may be unrelated
        self.close(error=None if is_interactive else getattr(sys, "last_value", None))

    def _is_active(self) -> bool:
        return not self._closed and self._capture.alive


_open_loggers: weakref.WeakSet[TuningLogger] = weakref.WeakSet()
