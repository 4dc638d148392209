"""Derives the final status of a training run from the exception that ended it."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from advisor.contract.redact import one_line_error

_OUT_OF_MEMORY_PHRASES = ("out of memory", "can't allocate memory", "cannot allocate memory")


class ExitStatus(NamedTuple):
    """Final status of a training run: value of `contract.TAG_STATUS`, status in MLflow, and a message about the exception."""

    status: str
    mlflow_status: str
    message: str = ""


def exit_status_from_exception(error: BaseException | None) -> ExitStatus | None:
    """Return the status that follows from the exception that ended the training; None if there was no exception, or if it was
    `sys.exit` without an error."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return None
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return ExitStatus("stopped", "KILLED")
    message = one_line_error(error, limit=1000)
    if is_out_of_memory(error):
        message = f"out of memory: {message}"
    return ExitStatus("infeasible", "FAILED", message)


def exit_status_without_exception(status: str, missing: str) -> ExitStatus:
    """Return the status of a training that ended without an exception. missing: one line about losses that belong to no
    optimizer step, or ""."""
    if missing and status == "complete":
        return ExitStatus("stopped", "FINISHED", missing)
    return ExitStatus(status, "FINISHED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that a device or the host ran out of memory. The error's text is checked too, because some
    allocators raise a general error class."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(phrase in text for phrase in _OUT_OF_MEMORY_PHRASES)


def terminating_exception() -> BaseException | None:
    """Return the exception that is terminating this script; None if there is none."""
    is_interactive = hasattr(sys, "ps1")  # in an interactive session, the last exception may be unrelated
    return None if is_interactive else getattr(sys, "last_value", None)
