"""What the callbacks for Lightning and Transformers share."""

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

from advisor.contract.redact import one_line
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.steps.device import Value
from advisor_pytorch.validation import check_objective

logger = logging.getLogger("advisor")

CALLBACK_ARGUMENTS = frozenset(("self", "model", "optimizer", "params", "objective", "direction", "start_step"))
"""Arguments of `TuningLogger` that a callback gives itself."""


def check_settings(
    callback: str,
    params: Mapping[str, object] | None,
    objective: object,
    direction: object,
    settings: Mapping[str, Any],
) -> None:
    """Raises TypeError or ValueError, before any data is loaded, for what `TuningLogger` would refuse when training starts."""
    check_objective({} if params is None else params, objective, direction)
    known = inspect.signature(TuningLogger.__init__).parameters.keys() - CALLBACK_ARGUMENTS
    for name in settings:
        if name not in known:
            raise TypeError(f"{callback} takes no argument {name!r}; it takes params and {', '.join(sorted(known))}")


def plain_values(nested: Mapping[Any, Any], prefix: str = "") -> dict[str, object]:
    """What of a nested mapping can be a hyperparameter: numbers, words, lists of them; by name, or by path as `optimizer/lr`."""
    found: dict[str, object] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= plain_values(value, f"{name}/")
        elif _is_plain(value):
            found[name] = value
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    scalar = getattr(value, "shape", None) == () and hasattr(value, "item")  # of NumPy or PyTorch
    return scalar or isinstance(value, (bool, int, float, str))


@contextmanager
def guard_training(what: str) -> Iterator[None]:
    """Runs what must never stop a training: whatever goes wrong in it is one line of warning."""
    try:
        yield
    except Exception as error:
        logger.warning("advisor: %s could not be logged (%s); training goes on", what, one_line(error))


class Evaluations:
    """The values of the objective as they came, still where they were computed."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self._values: dict[int, Value] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of an evaluation."""
        if (value := metrics.get(self._objective)) is not None:
            self._values[step] = value.detach().clone() if isinstance(value, torch.Tensor) else float(value)

    def at(self, step: int) -> float | None:
        """The value of the last evaluation up to `step`, None if there was none or it is not finite. Waits for the device."""
        steps = [s for s in self._values if s <= step]
        value = float(self._values[max(steps)]) if steps else math.nan
        return value if math.isfinite(value) else None


class CheckpointFiles:
    """Of which step the checkpoints are that a framework keeps: of the one at which they appeared or were written anew."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._written: dict[str, float | None] = {}

    def look(self, paths: Iterable[str], step: int | None) -> None:
        """Take note of the checkpoints that are there since `step`; None where they are of an earlier training."""
        for path in paths:
            written, before = _written_at(path), self._written.get(path, -1.0)
            self._written[path] = written
            if step is not None and before is not None and before != written:  # None: it was still being written
                self._steps[path] = step

    @property
    def paths(self) -> list[str]:
        """The checkpoints that were seen, whether they are still there or not."""
        return list(self._steps)

    def describe(self, policy: str, kept: Iterable[str], chosen: str | None, values: Evaluations) -> str:
        """The value of `contract.TAG_CHECKPOINTS`: of the paths in `kept`, those that were seen."""
        known = sorted({path for path in kept if path in self._steps}, key=lambda path: (self._steps[path], path))
        entries = [{"step": self._steps[path], "value": values.at(self._steps[path]), "path": path} for path in known]
        return json.dumps({"policy": policy, "kept": entries, "chosen": self._steps.get(chosen or "")})


def _written_at(path: str) -> float | None:
    """When the file or folder was last written; None where it is not on a local disk."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
