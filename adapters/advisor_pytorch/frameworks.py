"""Code that the callbacks for Lightning and Transformers share."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from advisor.contract import TAG_CHECKPOINTS
from advisor.contract.redact import one_line_error
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.outcome import Direction
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.validation import check_objective

logger = logging.getLogger("advisor")

CALLBACK_ARGUMENTS = frozenset(("self", "model", "optimizer", "params", "objective", "direction", "start_step"))
"""Arguments of `TuningLogger` that the callbacks for Lightning and Transformers set themselves, so that users cannot pass them."""


class FrameworkCallback:
    def __init__(
        self, objective: str, *, direction: Direction | None = None, params: Mapping[str, object] | None = None, **settings: Any
    ) -> None:
        """Create a callback that records each training run of the trainers to which it is passed.

        Args:
            objective: name of the metric that compares trials, as logged by the framework.
            direction: "minimize" or "maximize"; None: as the objective's name says.
            params: hyperparameters of the trial by name; None: those known to the framework.
            settings: any other argument of `TuningLogger`, such as `experiment`, `tracking_uri`, `study`, `run_id` or
                `checkpoints`. A setting that the user passes takes precedence over the trainer's value.

        Raises:
            TypeError, ValueError: an argument is invalid.
        """
        check_settings(params, objective, direction, settings)
        self._objective, self._direction, self._params, self._settings = objective, direction, params, settings
        self._log: TuningLogger | None = None
        self._last_log: TuningLogger | None = None

    @property
    def recording(self) -> TuningLogger | None:
        """The logger of the current or latest training run; None before the first run."""
        return self._log or self._last_log

    def _start_recording(
        self, model: Any, optimizer: Any, params: Mapping[str, object], start_step: int, defaults: Mapping[str, Any], **run: Any
    ) -> TuningLogger:
        """defaults: settings that the user did not pass. run: arguments that override the user's settings."""
        self._checkpoints = FrameworkCheckpoints(self._objective)
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
        """Log which checkpoints the framework wrote, unless our logger saves its own checkpoints."""
        if self._log is not None and not self._settings.get("checkpoints"):
            self._log.note({TAG_CHECKPOINTS: self._checkpoints.describe(policy, paths, chosen)})


def check_settings(
    params: Mapping[str, object] | None, objective: object, direction: object, settings: Mapping[str, Any]
) -> None:
    """Raise the TypeError or ValueError that `TuningLogger` would otherwise raise only when the training starts."""
    check_objective({} if params is None else params, objective, direction)
    argument_names = inspect.signature(TuningLogger.__init__).parameters.keys() - CALLBACK_ARGUMENTS
    for name in settings:
        if name not in argument_names:
            raise TypeError(f"TuningCallback has no argument {name!r}; it has params and {', '.join(sorted(argument_names))}")


def plain_values(nested: Mapping[Any, Any], prefix: str = "") -> dict[str, object]:
    """Return the numbers, texts and lists in a nested mapping, under names or paths such as `optimizer/lr`."""
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
def warn_on_training_error(what: str) -> Iterator[None]:
    """Log an error in the `with` block as a warning, so that the training continues. what: subject of the warning."""
    try:
        yield
    except Exception as error:
        logger.warning("advisor: %s could not be logged (%s); training continues", what, one_line_error(error))


class FrameworkCheckpoints:
    """Records the training step of each checkpoint file that a framework writes, and the objective's value at each step."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self._values: dict[int, ScalarValue] = {}
        self._steps: dict[str, int] = {}
        self._written: dict[str, float | None] = {}

    def add_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A value that is a tensor stays on its device until it is needed."""
        if (value := metrics.get(self._objective)) is not None:
            self._values[step] = value.detach().clone() if isinstance(value, torch.Tensor) else float(value)

    @property
    def has_values(self) -> bool:
        return bool(self._values)

    def record_files(self, paths: Iterable[str], step: int | None) -> None:
        """Record `step` for files that are new or have changed; None if an earlier training run wrote them."""
        for path in paths:
            written, before = None, self._written.get(path, -1.0)
            with suppress(OSError):  # the file is not on a local disk
                written = os.stat(path).st_mtime
            self._written[path] = written
            if step is not None and before is not None and before != written:  # None: the file was still being written
                self._steps[path] = step

    @property
    def paths(self) -> list[str]:
        return list(self._steps)

    def describe(self, policy: str, paths: Iterable[str], chosen: str | None) -> str:
        """Return the value of `contract.TAG_CHECKPOINTS`; reading a value that is a tensor waits for the device."""
        by_step = sorted({path for path in paths if path in self._steps}, key=lambda path: (self._steps[path], path))
        entries = [{"step": self._steps[path], "value": self._value_at(self._steps[path]), "path": path} for path in by_step]
        return json.dumps({"policy": policy, "kept": entries, "chosen": self._steps.get(chosen or "")})

    def _value_at(self, step: int) -> float | None:
        value = float(self._values[max(steps)]) if (steps := [s for s in self._values if s <= step]) else math.nan
        return value if math.isfinite(value) else None
