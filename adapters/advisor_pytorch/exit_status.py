"""How a training ended, as its exception tells."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from advisor.contract.redact import one_line

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


class ExitStatus(NamedTuple):
    """How a training ended: `contract.TAG_STATUS`, MLflow's status, and what to say of the exception."""

    status: str
    mlflow_status: str
    message: str = ""


def exit_status_of(error: BaseException | None) -> ExitStatus | None:
    """What an exception that left the training says of it; None if there was none, or only a clean `sys.exit`."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return None
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return ExitStatus("stopped", "KILLED")
    message = one_line(error, limit=1000)
    if is_out_of_memory(error):
        message = f"out of memory: {message}"
    return ExitStatus("infeasible", "FAILED", message)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory; not every allocator raises a class of its own."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in _NO_MEMORY)


def last_exception() -> BaseException | None:
    """What ended the script whose interpreter is about to exit; None if nothing did."""
    in_a_session = hasattr(sys, "ps1")  # there, the last exception may be any
    return None if in_a_session else getattr(sys, "last_value", None)
