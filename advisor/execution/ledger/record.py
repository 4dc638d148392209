"""Data of the record, and single attempts at a call of MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from advisor.execution.job import Key
from advisor.execution.ledger.claims import State
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.tracking.stores.client import IMPATIENT, one_line, quiet_mlflow

_SINGLE_ATTEMPT = {**IMPATIENT, "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""MLflow settings for one attempt, long enough for a busy server; the launcher repeats it."""
_PERMANENT_ERRORS = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
}
PATIENCE_S = 600.0
"""Maximum time to wait for a store that does not answer, once no training runs."""
MAX_PAUSE_S = 30.0
"""Maximum pause between two attempts."""
MAX_CHARS = 5000
"""Maximum length of a parameter's value on servers of all versions."""

Result = TypeVar("Result")


class LaterError(Exception):
    """The store does not answer; the call should be repeated."""


class DeliveringError(LaterError):
    """The store answers, but the hook may still be delivering the run's data."""


class UnansweredError(AdvisorError):
    """The store has not answered for so long that we give up."""


class RefusedError(AdvisorError):
    """The store refuses, and would refuse again: a run or an experiment was deleted, a name is not allowed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a job."""

    status: str
    """One of `contract.STATUSES`."""
    best: float | None
    """Best value of the objective, or None without a finite one."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that was begun."""

    run_id: str
    key: Key
    state: State
    params: Mapping[str, str]
    """Texts, as MLflow stores them."""
    seed: str = ""
    outcome: Outcome | None = None
    """Set if the job is done."""


def attempt(call: Callable[[], Result]) -> Result:
    """Return the result of a single call. Raises RefusedError or LaterError."""
    with quiet_mlflow(_SINGLE_ATTEMPT):
        try:
            return call()
        except (AdvisorError, LaterError):
            raise
        except Exception as error:
            permanent = getattr(error, "error_code", None) in _PERMANENT_ERRORS
            raise (RefusedError if permanent else LaterError)(one_line(error)) from None


def logged_text(value: Value) -> str:
    """Return a hyperparameter as MLflow stores it."""
    return str(value)[:MAX_CHARS]


def quoted(text: str) -> str:
    """Return a study's name as a literal of MLflow's filter language. Raises AdvisorError if there is none."""
    for mark in ("'", '"'):
        if mark not in text:
            return f"{mark}{text}{mark}"
    raise AdvisorError(f"the study's name {text!r} has both kinds of quotes, which MLflow cannot search for; rename it")
