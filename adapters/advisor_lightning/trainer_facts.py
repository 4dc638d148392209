"""Reads facts, new metrics, losses and the wait for batches from a Lightning trainer."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from advisor import contract

__all__ = ["Callback", "LightningModule", "Trainer"]

_imports_lightning_pytorch = "lightning.pytorch" in sys.modules or (
    "pytorch_lightning" not in sys.modules and importlib.util.find_spec("lightning") is not None
)

if TYPE_CHECKING or _imports_lightning_pytorch:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer


def max_train_steps(trainer: Trainer) -> int | None:
    """Return the planned number of steps per optimizer; None if unknown."""
    steps = trainer.estimated_stepping_batches
    if steps == trainer.max_steps:
        steps = steps // len(trainer.optimizers)
    return int(steps) if math.isfinite(steps) and steps >= 1 else None


def single_loader_or_none(loaders: Any) -> Any:
    """Return None for several validation loaders, because the size of the validation set is then ambiguous."""
    if isinstance(loaders, (list, tuple)):
        return loaders[0] if len(loaders) == 1 else None
    return None if isinstance(loaders, dict) else loaders


def mlflow_run(trainer: Trainer) -> dict[str, str]:
    for logger in trainer.loggers:
        if any(kind.__name__ == "MLFlowLogger" for kind in type(logger).__mro__):
            mlflow_logger: Any = logger
            if mlflow_logger.run_id:
                return {"run_id": mlflow_logger.run_id, "tracking_uri": mlflow_logger.experiment.tracking_uri}
    return {}


def trainer_tags(trainer: Trainer) -> dict[str, str]:
    tags: dict[str, str] = {}
    batches = trainer.num_training_batches
    if math.isfinite(batches):
        tags[contract.TAG_STEPS_PER_EPOCH] = str(math.ceil(batches / trainer.accumulate_grad_batches))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        name = type(callback).__name__
        if "WeightAveraging" in name:
            kind = "ema" if "EMA" in name else "swa" if "Stochastic" in name else "other"
            tags[contract.TAG_AVERAGING] = json.dumps({"class": name, "kind": kind})
    return tags


def checkpoint_paths(trainer: Trainer) -> Iterator[str]:
    """Yield the paths of the checkpoints on disk that the trainer's callbacks wrote."""
    for callback in trainer.checkpoint_callbacks:
        yield from getattr(callback, "best_k_models", ())
        for name in ("best_model_path", "last_model_path"):
            if path := getattr(callback, name, ""):
                yield path


def checkpoint_policy(trainer: Trainer) -> tuple[str, str | None] | None:
    """Return the checkpoint policy for `contract.TAG_CHECKPOINTS` and the path of the best checkpoint; None if there are no
    checkpoints."""
    best_policy, keeps_last, best_path = "", False, None
    for callback in trainer.checkpoint_callbacks:
        save_top_k = getattr(callback, "save_top_k", 0)
        if save_top_k == -1:
            best_policy = best_policy or "all"
        elif save_top_k and getattr(callback, "monitor", None) is not None:
            best_policy = best_policy or f"best-{save_top_k}"
        if getattr(callback, "monitor", None) is not None:
            best_path = best_path or getattr(callback, "best_model_path", None) or None
        keeps_last = keeps_last or bool(getattr(callback, "save_last", None)) or (save_top_k == 1 and best_path is None)
    policy = "+".join([*([best_policy] if best_policy else []), *(["last"] if keeps_last else [])])
    return (policy, best_path) if policy else None


class UnseenMetrics:
    """Finds the metrics in `trainer.callback_metrics` that were logged since the last call.

    A value is new if its tensor has a different memory address than at the last call, so no value is copied from the device.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # the references to the tensors keep Python from reusing their memory addresses

    def mark_all_seen(self, metrics: Mapping[str, Any]) -> None:
        self._seen = dict(metrics)

    def take_unseen(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new metrics. If a loss is logged both per step and per epoch, only the epoch's value is returned."""
        new = {name: value for name, value in metrics.items() if not _is_value_already_seen(value, self._seen.get(name))}
        self.mark_all_seen(metrics)
        return {name: value for name, value in new.items() if f"{name}_epoch" not in new and not name.endswith("_step")}


def _is_value_already_seen(value: Any, earlier: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(earlier, torch.Tensor):
        return value.data_ptr() == earlier.data_ptr()
    return value is earlier


def step_loss(outputs: Any, micro_batches: int) -> torch.Tensor | None:
    """Return the loss that `training_step` returned, before Lightning's division by the number of micro-batches."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        return None
    return loss.detach() * micro_batches if micro_batches > 1 else loss


FETCH_ACTION_SUFFIX = ".train_dataloader_next"
"""Suffix of the profiler action that waits for a training batch, such as `[_TrainingEpochLoop].train_dataloader_next`."""


class FetchTimer:
    """Measures the wait for each batch by intercepting calls of the trainer's profiler until `stop` is called.

    The time from one batch to the next would also include the time of loggers and checkpoints.
    """

    def __init__(self, profiler: Any, begin: Callable[[], None], end: Callable[[float], None]) -> None:
        self._profiler, self._begin, self._end = profiler, begin, end
        self._inner_start, self._inner_stop = profiler.start, profiler.stop
        self._started: float | None = None
        profiler.start, profiler.stop = self._start_action, self._stop_action

    def stop(self) -> None:
        for name, own in (("start", self._start_action), ("stop", self._stop_action)):
            if vars(self._profiler).get(name) == own:
                delattr(self._profiler, name)

    def _start_action(self, action_name: str) -> None:
        if action_name.endswith(FETCH_ACTION_SUFFIX):
            self._begin()
            self._started = time.perf_counter()
        self._inner_start(action_name)

    def _stop_action(self, action_name: str) -> None:
        self._inner_stop(action_name)
        if self._started is not None and action_name.endswith(FETCH_ACTION_SUFFIX):
            self._end(time.perf_counter() - self._started)
            self._started = None
