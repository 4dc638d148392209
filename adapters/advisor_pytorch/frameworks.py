"""Code shared by the callbacks for Lightning and Transformers."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from advisor.contract import TAG_CHECKPOINTS
from advisor.contract.redact import one_line_error
from advisor_logging.outcome import Direction
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.steps.device import Value
from advisor_pytorch.validation import check_objective

logger = logging.getLogger("advisor")

CALLBACK_ARGUMENTS = frozenset(("self", "model", "optimizer", "params", "objective", "direction", "start_step"))
"""Arguments of `TuningLogger` that the callbacks set themselves and that users therefore cannot pass."""


class FrameworkCallback:
    """The framework-independent part of the training callbacks."""

    def __init__(
        self,
        objective: str,
        *,
        direction: Direction | None = None,
        params: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> None:
        """Create a callback that records every training of the trainers to which it is passed.

        Args: objective: name of the metric that compares trials, as logged by the framework. direction: "minimize" or "maximize";
            None: as the objective's name says. params: hyperparameters of the trial by name; None: those known to the framework.
            settings: any other argument of `TuningLogger`, such as `experiment`, `tracking_uri`, `study`, `run_id` or
            `checkpoints`. A setting takes precedence over the value from the trainer.

        Raises:
            TypeError, ValueError: an argument is invalid.
        """
        check_settings(params, objective, direction, settings)
        self._objective, self._direction, self._params, self._settings = objective, direction, params, settings
        self._log: TuningLogger | None = None
        self._last_log: TuningLogger | None = None

    @property
    def recording(self) -> TuningLogger | None:
        """The logger of the current or most recent training; None before the first training."""
        return self._log or self._last_log

    def _start_recording(
        self,
        model: Any,
        optimizer: Any,
        params: Mapping[str, object],
        start_step: int,
        defaults: Mapping[str, Any],
        **run: Any,
    ) -> TuningLogger:
        """Start recording a training. defaults: defaults for settings that the user did not pass. run: arguments that override
        settings."""
        self._evaluations, self._files = ObjectiveValues(self._objective), CheckpointFiles()
        self._log = self._last_log = TuningLogger(
            model,
            optimizer,
            params=params,
            objective=self._objective,
            direction=self._direction,
            start_step=start_step,
            **{**defaults, **self._settings, **run},
        )
        return self._log

    def _log_checkpoints(self, policy: str, paths: Iterable[str], chosen: str | None) -> None:
        """Log the checkpoints that the framework wrote, unless our logger keeps its own."""
        if self._log is not None and not self._settings.get("checkpoints"):
            self._log.note({TAG_CHECKPOINTS: self._files.describe(policy, paths, chosen, self._evaluations)})


def check_settings(
    params: Mapping[str, object] | None, objective: object, direction: object, settings: Mapping[str, Any]
) -> None:
    """Raise the TypeError or ValueError that `TuningLogger` would otherwise raise only at the start of the training."""
    check_objective({} if params is None else params, objective, direction)
    known = inspect.signature(TuningLogger.__init__).parameters.keys() - CALLBACK_ARGUMENTS
    for name in settings:
        if name not in known:
            raise TypeError(
                f"TuningCallback takes no argument {name!r}; it takes params and {', '.join(sorted(known))}"
            )


def plain_values(nested: Mapping[Any, Any], prefix: str = "") -> dict[str, object]:
    """Return the numbers, texts and lists of such values in a nested mapping, under names or paths such as `optimizer/lr`."""
    result: dict[str, object] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            result |= plain_values(value, f"{name}/")
        elif _is_plain_value(value):
            result[name] = value
    return result


def _is_plain_value(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain_value(part) for part in value)
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")  # a scalar of NumPy or PyTorch
    return is_scalar or isinstance(value, (bool, int, float, str))


@contextmanager
def guard_training(what: str) -> Iterator[None]:
    """Turn an error in the `with` block into a warning, so that the training continues. what: the subject of the warning."""
    try:
        yield
    except Exception as error:
        logger.warning("advisor: %s could not be logged (%s); training goes on", what, one_line_error(error))


class ObjectiveValues:
    """Values of the objective by step. A tensor stays on its device until its value is read."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self._values: dict[int, Value] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the value of the objective in an evaluation at `step`, if `metrics` contains it."""
        if (value := metrics.get(self._objective)) is not None:
            self._values[step] = value.detach().clone() if isinstance(value, torch.Tensor) else float(value)

    def value_at(self, step: int) -> float | None:
        """Return the last value of the objective up to `step`; None if there is none or it is not finite. Reading a tensor's value
        waits for the device."""
        steps = [s for s in self._values if s <= step]
        value = float(self._values[max(steps)]) if steps else math.nan
        return value if math.isfinite(value) else None


class CheckpointFiles:
    """Records, for each checkpoint file of a framework, the training step at which the file appeared or changed."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._written: dict[str, float | None] = {}

    def record_files(self, paths: Iterable[str], step: int | None) -> None:
        """Record `step` for the files that are new or have changed since the last call. step: None if an earlier training wrote the
        files."""
        for path in paths:
            written, before = _modification_time(path), self._written.get(path, -1.0)
            self._written[path] = written
            if step is not None and before is not None and before != written:  # None: the file was still being written
                self._steps[path] = step

    @property
    def paths(self) -> list[str]:
        """Paths of all recorded checkpoints, including those since deleted."""
        return list(self._steps)

    def describe(self, policy: str, paths: Iterable[str], chosen: str | None, values: ObjectiveValues) -> str:
        """Return the value of `contract.TAG_CHECKPOINTS` for those recorded checkpoints that are among `paths`."""
        known = sorted({path for path in paths if path in self._steps}, key=lambda path: (self._steps[path], path))
        entries = [
            {"step": self._steps[path], "value": values.value_at(self._steps[path]), "path": path} for path in known
        ]
        return json.dumps({"policy": policy, "kept": entries, "chosen": self._steps.get(chosen or "")})


def _modification_time(path: str) -> float | None:
    """Return the modification time of a file or folder; None if it is not on a local disk."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
