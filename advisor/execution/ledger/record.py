"""Data classes for recording jobs, and functions that try an MLflow call once or repeatedly until the store answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from advisor.execution.job import Key
from advisor.execution.ledger.claims import State
from advisor.model.errors import AdvisorError, UnansweredError
from advisor.model.space import Value
from advisor.tracking.stores.client import FIRST_REQUEST_SETTINGS, one_line_error, quiet_mlflow

_SINGLE_ATTEMPT_SETTINGS = {**FIRST_REQUEST_SETTINGS, "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""MLflow settings for a single attempt at a call, with a timeout (seconds) that suits a busy server. The launcher repeats failed
calls."""
_PERMANENT_ERROR_CODES = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
}
MAX_STORE_WAIT_S = 600.0
"""Maximum seconds to wait for an unreachable tracking store while no training is running."""
MAX_RETRY_PAUSE_S = 30.0
"""Maximum seconds between two attempts to reach the tracking store."""
DELIVERY_POLL_S = 0.2
"""Seconds between two checks whether the hook has delivered a run's data."""
MAX_VALUE_CHARS = 5000
"""Maximum number of characters of a parameter's value: the smallest limit among all versions of MLflow's server."""

Result = TypeVar("Result")


class LaterError(Exception):
    """Raised if the tracking store is unreachable; the call should be repeated later."""


class DeliveringError(LaterError):
    """Raised if the tracking store is reachable, but our hook may still be delivering the run's data."""


class RefusedError(AdvisorError):
    """Raised if the tracking store rejects a call and would also reject a retry, because a run or experiment was deleted or a name
    is invalid.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recorded result of a job."""

    status: str
    """One of `contract.STATUSES`."""
    best: float | None
    """Best finite value of the objective; None if there is no finite value."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that a launcher has begun."""

    run_id: str
    key: Key
    state: State
    params: Mapping[str, str]
    """Hyperparameter values as text, in the form that MLflow stores."""
    seed: str = ""
    outcome: Outcome | None = None
    """Result of the job; None until it is done."""
    continued: str = ""
    """Text of the tag that records the guard's stop, if the job is continued after this stop; else empty."""
    resumes: bool = False
    """Whether the training resumes from its last checkpoint."""


def attempt_once(call: Callable[[], Result]) -> Result:
    """Make one attempt at an MLflow call and return its result. Raises RefusedError or LaterError."""
    with quiet_mlflow(_SINGLE_ATTEMPT_SETTINGS):
        try:
            return call()
        except (AdvisorError, LaterError):
            raise
        except Exception as error:
            permanent = getattr(error, "error_code", None) in _PERMANENT_ERROR_CODES
            raise (RefusedError if permanent else LaterError)(one_line_error(error)) from None


def retry_while_unreachable(
    call: Callable[[], Result], *, on_failure: Callable[[], None] = lambda: None, patience_s: float | None = None
) -> Result:
    """Return the result of `call`. While the store is unreachable, retry for up to `patience_s` seconds (None: `MAX_STORE_WAIT_S`).

    on_failure: called once, after the first failed attempt.
    """
    until, pause = time.monotonic() + (MAX_STORE_WAIT_S if patience_s is None else patience_s), 1.0
    while True:
        try:
            return call()
        except DeliveringError:
            time.sleep(DELIVERY_POLL_S)
        except (LaterError, UnansweredError) as error:
            if pause == 1.0:
                on_failure()
            if time.monotonic() + pause > until:
                reason = str(error).partition("; ")[0]
                raise UnansweredError(f"the store does not answer: {reason}; run the same again when it does") from None
            time.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_PAUSE_S)


def logged_text(value: Value) -> str:
    """Return the text with which MLflow stores a hyperparameter's value."""
    return str(value)[:MAX_VALUE_CHARS]


def quote_study_name(text: str) -> str:
    """Return a study's name as a string literal of MLflow's filter language. Raises AdvisorError if the name cannot be quoted."""
    for mark in ("'", '"'):
        if mark not in text:
            return f"{mark}{text}{mark}"
    raise AdvisorError(f"the study's name {text!r} has both kinds of quotes, which MLflow cannot search for; rename it")
