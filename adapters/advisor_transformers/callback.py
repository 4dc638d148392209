"""`TuningCallback`, a Trainer callback that records a training run for Tuning Advisor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from numbers import Real
from types import TracebackType
from typing import Any, Self

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from advisor import contract
from advisor_pytorch.frameworks import FrameworkCallback, warn_on_training_error
from advisor_pytorch.steps.device import ScalarValue, detached_copy
from advisor_pytorch.steps.patches import FunctionPatches
from advisor_transformers.arguments import hyperparameters, is_pretrained

_backward_patches: FunctionPatches[Callable[[torch.Tensor], None]] = FunctionPatches(
    lambda: _backward_patches.replace(Accelerator, "backward", _observe_backward)
)


def _observe_backward(original: Any) -> Any:
    def backward(self: Accelerator, loss: Any, **kwargs: Any) -> Any:
        if isinstance(loss, torch.Tensor):
            for listener in list(_backward_patches.listeners):
                listener(loss)
        return original(self, loss, **kwargs)

    return backward


EXCLUDED_LOG_KEYS = frozenset("loss grad_norm learning_rate epoch total_flos step_time".split())
"""Names of values logged by the Trainer or TRL that are not metrics, or that the callback measures itself."""
_TRAIN_METRIC_PREFIX = "train/"


def trainer_training_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the training metrics in one entry of the trainer's log, under names `train/NAME`.

    The result is empty for entries of evaluations and for the summary at the end of the training.
    """
    if any(name.endswith("_runtime") for name in logs):
        return {}
    return {
        _TRAIN_METRIC_PREFIX + name: float(value)
        for name, value in logs.items()
        if name not in EXCLUDED_LOG_KEYS
        and not name.startswith(("eval_", "train_", _TRAIN_METRIC_PREFIX))
        and isinstance(value, Real)
    }


def evaluation_metrics(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an evaluation in one entry of the trainer's log; older TRL versions add their metrics only there."""
    return {name: value for name, value in logs.items() if name.startswith("eval_")}


class TuningCallback(FrameworkCallback, TrainerCallback):
    """Records a training run of the Transformers Trainer, including everything that `advisor_pytorch.TuningLogger` logs.

        arguments = TrainingArguments(seed=args.seed, max_steps=2000, ...)
        trainer = Trainer(model, arguments, ..., callbacks=[TuningCallback("eval_loss")])
        trainer.train()

    | logged | from |
    |---|---|
    | `train/loss` | the loss passed to the backward pass, at each optimizer step |
    | evaluations | `Trainer.evaluate`, with Transformers' metric names and step: `eval_loss` at `global_step` |
    | `train/NAME` | other values, at the steps at which the trainer logs them: TRL's `reward`, `kl`, `entropy`, ... |
    | params | hyperparameters among the arguments, settings of a LoRA adapter, configuration entries other than the defaults, |
    | | and the name of the pretrained model, `_name_or_path` |
    | `advisor.max_train_steps`, `advisor.seed`, `advisor.batch_size`, ... | the arguments |
    | `advisor.checkpoints` | the checkpoints that exist at the end, and the one chosen by `load_best_model_at_end` |
    | `train/data_wait_s` | time from the end of a step, its logging and evaluation to the start of the next step |

    If Transformers' own `MLflowCallback` is active, everything is logged to the run of that callback. The Trainer does not
    notify callbacks of an exception, so the callback records an exception only when the script exits. If you catch exceptions
    of the training yourself, use the callback as a context manager:

        with TuningCallback("eval_loss") as tuning:
            Trainer(model, arguments, ..., callbacks=[tuning]).train()

    With `guard="stop"`, the callback stops the training after a step if the trial can no longer beat the best trial of its
    study (`TuningLogger.should_stop`).
    """

    _is_training = False
    _waiting_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_log(error)

    @override
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Prepare to record a training run. The recording starts later, so that other callbacks can start their MLflow run
        first."""
        self._close_log(None)  # an earlier training of this trainer may have ended with an exception
        self._is_training = True

    @override
    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._begin_recording(args, state, kwargs)
        self._waiting_since = time.perf_counter()

    def _begin_recording(self, args: TrainingArguments, state: TrainerState, kwargs: Mapping[str, Any]) -> None:
        if not self._is_training or self._log is not None:
            return
        model, micro_batches = kwargs["model"], args.gradient_accumulation_steps
        settings = {
            "max_train_steps": state.max_steps if state.max_steps > 0 else None,
            "seed": args.seed,
            "batch_size": args.train_batch_size * micro_batches,
            "run_name": args.run_name,
            "scheduler": kwargs.get("lr_scheduler"),
        }
        params: dict[str, object] = {}
        with warn_on_training_error("the hyperparameters"):
            params = hyperparameters(args, model) if self._params is None else dict(self._params)
        log = self._start_recording(model, kwargs["optimizer"], params, state.global_step, settings)
        self._losses: list[ScalarValue] = []
        self._logged_evaluation: dict[str, Any] = {}
        _backward_patches.add_listener(self._on_backward)
        if is_pretrained(model):
            log.note({contract.TAG_PRETRAINED: "true"})
        loader: Any = kwargs.get("train_dataloader")
        log.loaders(train=loader)
        if micro_batches > 1:
            log.note({contract.TAG_MICRO_BATCHES: str(micro_batches)})
            with warn_on_training_error("the number of steps per epoch"):
                log.note({contract.TAG_STEPS_PER_EPOCH: str(math.ceil(len(loader) / micro_batches))})

    @override
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._log is not None:
            with warn_on_training_error("the checkpoints"):
                paths = [path for path in self._checkpoints.paths if os.path.isdir(path)]
                if paths:
                    best = state.best_model_checkpoint if args.load_best_model_at_end else None
                    keep = "all" if args.save_total_limit is None else "best-1+last" if args.load_best_model_at_end else "last"
                    self._log_checkpoints(keep, paths, best)
        self._close_log(None)

    def _close_log(self, error: BaseException | None) -> None:
        log, self._log, self._is_training = self._log, None, False
        if log is not None:
            _backward_patches.remove_listener(self._on_backward)
            log.close(error=error)

    def _on_backward(self, loss: torch.Tensor) -> None:
        with warn_on_training_error("the loss"):
            self._losses.append(detached_copy(loss))
            if self._log is not None:
                self._log.show(loss)

    @override
    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._log is not None and self._waiting_since is not None:
            self._log.add_batch(time.perf_counter() - self._waiting_since)

    @override
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._log is None:
            return
        losses, self._losses = self._losses, []
        if losses:
            with warn_on_training_error("the loss"):
                examples = args.train_batch_size * len(losses)
                self._log.step(sum(losses[1:], start=losses[0]), examples=examples)
        self._stop_if_guard_asks(control)
        self._waiting_since = time.perf_counter()

    @override
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log metrics of the trainer that the base Trainer does not have. The time that logging takes is excluded from the
        measured wait for data."""
        logs = kwargs.get("logs")
        if self._log is not None and isinstance(logs, Mapping):
            with warn_on_training_error("the trainer's metrics"):
                self._logged_evaluation = evaluation_metrics(logs)
                self._log.log_metrics(trainer_training_metrics(logs))
        self._waiting_since = time.perf_counter()

    @override
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._begin_recording(args, state, kwargs)
        metrics = kwargs.get("metrics")
        if self._log is None or not metrics:
            return
        with warn_on_training_error("an evaluation"):
            if not self._checkpoints.has_values:
                self._log.loaders(valid=kwargs.get("eval_dataloader"))
            logged, self._logged_evaluation = self._logged_evaluation, {}
            results = {name: value for name, value in {**logged, **metrics}.items() if name != "epoch" and value is not None}
            self._checkpoints.add_evaluation(state.global_step, results)
            self._log.evaluate(results, step=state.global_step)
        self._stop_if_guard_asks(control)
        self._waiting_since = time.perf_counter()

    def _stop_if_guard_asks(self, control: TrainerControl) -> None:
        if self._log is not None and self._log.should_stop:
            control.should_training_stop = True

    @override
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._log is not None:
            with warn_on_training_error("a checkpoint"):
                path = os.path.join(args.output_dir or "", f"checkpoint-{state.global_step}")
                self._checkpoints.record_files([path], state.global_step)
            self._log.evaluate({})  # exclude the time that saving takes, because it is not training time
        self._waiting_since = time.perf_counter()
