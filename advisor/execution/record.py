"""What is kept of jobs, and how the record is spoken with: one attempt at a time, and what an attempt may come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from advisor.execution.claims import State
from advisor.execution.jobs import Key
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.tracking.stores.client import IMPATIENT, one_line, quiet_mlflow

_BRISK = {**IMPATIENT, "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""One attempt, long enough for a busy server; the launcher makes the next."""
_FINAL = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "PERMISSION_DENIED", "UNAUTHENTICATED"}
"""MLflow's codes of what no further attempt will change."""
PATIENCE_S = 600.0
"""How long to wait for a store that does not answer, once nothing is left to train without it."""
LONGEST_PAUSE_S = 30.0
"""Between two attempts."""
LONGEST = 5000
"""Characters of a parameter's value that servers of all versions accept."""

Result = TypeVar("Result")


class LaterError(Exception):
    """The store does not answer: ask again."""


class DeliveringError(LaterError):
    """The store answers, but has not all of a run yet."""


class UnansweredError(AdvisorError):
    """The store has not answered for so long that nobody waits any more."""


class RefusedError(AdvisorError):
    """The store refuses, and will again: a run or an experiment was deleted, a name is not allowed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    status: str
    """One of `contract.STATUSES`."""
    best: float | None
    """Best value of the objective; None where it has no finite one."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that was begun."""

    run_id: str
    key: Key
    state: State
    params: Mapping[str, str]
    """As MLflow keeps them, as text."""
    seed: str = ""
    """As noted with the run."""
    outcome: Outcome | None = None
    """Of one that is done."""


def once(call: Callable[[], Result]) -> Result:
    """The call's result, in one attempt."""
    with quiet_mlflow(_BRISK):
        try:
            return call()
        except (AdvisorError, LaterError):
            raise
        except Exception as error:
            refused = getattr(error, "error_code", None) in _FINAL
            raise (RefusedError if refused else LaterError)(one_line(error)) from None


def as_logged(value: Value) -> str:
    """A hyperparameter as MLflow keeps it."""
    return str(value)[:LONGEST]


def quoted(text: str) -> str:
    """A study's name as it stands in MLflow's filters; AdvisorError where none can hold it."""
    for mark in ("'", '"'):
        if mark not in text:
            return f"{mark}{text}{mark}"
    raise AdvisorError(f"the study's name {text!r} has both kinds of quotes, which MLflow cannot search for; rename it")
