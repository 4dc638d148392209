"""The outcome of a trial: its best evaluation, and its final status, also after an exception."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from advisor import contract
from advisor.contract.guard_file import GuardVerdict
from advisor.contract.guard_stop import GuardStop
from advisor.contract.redact import one_line_error
from advisor_logging.table import MetricTable

Direction = Literal["minimize", "maximize"]


def is_better(value: float, reference: float, direction: Direction) -> bool:
    """Any finite value of the objective is better than a non-finite value."""
    if not math.isfinite(value):
        return False
    if not math.isfinite(reference):
        return True
    return value < reference if direction == "minimize" else value > reference


class RunOutcome:
    """Tracks the training loss and the objective of one trial, and derives the trial's final status from them."""

    def __init__(self, objective: str, direction: Direction) -> None:
        self._objective, self._direction = objective, direction
        self.best: tuple[int, float] | None = None
        """Step and value of the best evaluation; None before the first finite value."""
        self.is_evaluated = False
        """Whether the objective was evaluated at least once, even with a non-finite value."""
        self._last: dict[str, float] = {}

    def update(self, step: int, name: str, value: float) -> None:
        self._last[name] = value
        if name != self._objective:
            return
        self.is_evaluated = True
        if self.best is None:
            self.best = (step, value) if math.isfinite(value) else None
        elif is_better(value, self.best[1], self._direction):
            self.best = (step, value)

    def add_rows(self, table: MetricTable) -> None:
        if (values := table.columns.get(self._objective)) is not None:
            for step, value in zip(table.steps, values, strict=True):
                self.update(step, self._objective, value)
        elif losses := table.columns.get(contract.TRAIN_LOSS):
            self.update(table.steps[-1], contract.TRAIN_LOSS, losses[-1])

    def final_status(self, steps_done: int, max_train_steps: int | None) -> str:
        # Many training loops stop early when they diverge.
        if not all(math.isfinite(value) for value in self._last.values()):
            return "diverged"
        if not self.is_evaluated:
            return "no_data"
        if max_train_steps is not None and steps_done < max_train_steps:
            return "stopped"
        return "complete"


def guard_stop_tags(verdict: GuardVerdict, step: int) -> dict[str, str]:
    stop = GuardStop(verdict["state"], step, verdict["message"], verdict["at"])
    return {contract.TAG_STATUS: stop.status, contract.TAG_GUARD_STOP: stop.tag_text()}


_OUT_OF_MEMORY_PHRASES = ("out of memory", "can't allocate memory", "cannot allocate memory")


class ExitStatus(NamedTuple):
    """Final status of a training run: value of `contract.TAG_STATUS`, status in MLflow, and a message about the exception."""

    status: str
    mlflow_status: str
    message: str = ""


def exit_status_from_exception(error: BaseException | None) -> ExitStatus | None:
    """Return None if there was no exception, or if it was `sys.exit` without an error."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return None
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return ExitStatus("stopped", "KILLED")
    message = one_line_error(error, limit=1000)
    if is_out_of_memory(error):
        message = f"out of memory: {message}"
    return ExitStatus("infeasible", "FAILED", message)


def is_out_of_memory(error: BaseException) -> bool:
    """The error's text is checked too, because some allocators raise a general error class."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(phrase in text for phrase in _OUT_OF_MEMORY_PHRASES)
