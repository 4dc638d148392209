"""Defines data classes for records of jobs, and functions that call MLflow once or until the tracking store answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from advisor.execution.job import JobKey
from advisor.execution.ledger.claims import JobState
from advisor.model.errors import AdvisorError, UnansweredError
from advisor.model.space import HyperparameterValue
from advisor.tracking.stores.client import FIRST_REQUEST_SETTINGS, one_line_error, quiet_mlflow

_SINGLE_ATTEMPT_SETTINGS = {**FIRST_REQUEST_SETTINGS, "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""MLflow settings for a single attempt, with a timeout in seconds that suits a busy server."""
_FATAL_CODES = {
    *("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "PERMISSION_DENIED", "UNAUTHENTICATED")
}
MAX_STORE_WAIT_S = 600.0
"""Maximum seconds to wait for an unreachable tracking store while no trial is running."""
MAX_RETRY_PAUSE_S = 30.0
"""Maximum seconds between two attempts to reach the tracking store."""
DELIVERY_POLL_INTERVAL_S = 0.2
"""Seconds between two checks whether the training hook has delivered all data of a run."""
MAX_PARAM_VALUE_CHARS = 5000
"""Maximum number of characters of a hyperparameter's value: the smallest limit among all versions of the MLflow server."""

FAILED_STATUSES = ("infeasible", "no_data")
"""Statuses of trials that have no result because of an error in the training script or its command. The status "diverged" is
not among them, because divergence is a result."""

CallResult = TypeVar("CallResult")


class StoreUnreachableError(Exception):
    """Raised if the tracking store is unreachable; repeat the call later."""


class DataPendingError(StoreUnreachableError):
    """Raised if the tracking store is reachable, but our training hook may still deliver data of the run."""


class CallRejectedError(AdvisorError):
    """Raised if the tracking store rejects a call for good, because a run or experiment was deleted or a name is invalid."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job, as recorded in MLflow."""

    status: str
    """One of `contract.STATUSES`."""
    best: float | None
    """Best finite value of the objective, or None if the objective has no finite value."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job that a launcher has begun."""

    run_id: str
    key: JobKey
    state: JobState
    params: Mapping[str, str]
    """Hyperparameter values as MLflow stores them."""
    seed: str = ""
    outcome: JobOutcome | None = None
    stop_tag: str = ""
    """If the job continues after an early stop: text of the tag that recorded the stop; else empty."""
    can_resume: bool = False


def call_mlflow_once(call: Callable[[], CallResult]) -> CallResult:
    """Return the result of one MLflow call. Raises CallRejectedError or StoreUnreachableError."""
    with quiet_mlflow(_SINGLE_ATTEMPT_SETTINGS):
        try:
            return call()
        except (AdvisorError, StoreUnreachableError):
            raise
        except Exception as error:
            is_permanent = getattr(error, "error_code", None) in _FATAL_CODES
            raise (CallRejectedError if is_permanent else StoreUnreachableError)(one_line_error(error)) from None


def retry_while_unreachable(
    call: Callable[[], CallResult], *, on_failure: Callable[[], None] = lambda: None, patience_s: float | None = None
) -> CallResult:
    """Return the result of `call`, a function that calls MLflow. While the tracking store is unreachable, retry for up to
    `patience_s` seconds (None: `MAX_STORE_WAIT_S`). on_failure: function to call once, after the first failed attempt."""
    until, pause = time.monotonic() + (MAX_STORE_WAIT_S if patience_s is None else patience_s), 1.0
    while True:
        try:
            return call()
        except DataPendingError:
            time.sleep(DELIVERY_POLL_INTERVAL_S)
        except (StoreUnreachableError, UnansweredError) as error:
            if pause == 1.0:
                on_failure()
            if time.monotonic() + pause > until:
                reason = str(error).partition("; ")[0]
                raise UnansweredError(f"the tracking store does not answer: {reason}; try again when it does") from None
            time.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_PAUSE_S)


def mlflow_param_text(value: HyperparameterValue) -> str:
    return str(value)[:MAX_PARAM_VALUE_CHARS]


def quote_study_name(text: str) -> str:
    """Return the name of a study as a string literal of MLflow's filter language. Raises AdvisorError for both quotes."""
    for mark in ("'", '"'):
        if mark not in text:
            return f"{mark}{text}{mark}"
    problem = "has both kinds of quotation marks, which MLflow cannot search for"
    raise AdvisorError(f"the study's name {text!r} {problem}; rename the study")


class StoreOutage:
    """Tracks whether the tracking store answers and, during an outage, when to call the store again. Training continues."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """report: function that shows a line to the user when an outage starts or ends."""
        self._report = report
        self._since: float | None = None
        self.retry_at = 0.0
        """Earliest time of the next call, on the clock of `time.monotonic`."""

    @property
    def is_ongoing(self) -> bool:
        return self._since is not None

    def record_failure(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._report("The tracking store does not answer; runs continue, and we save their results until it does.")
        self.retry_at = now + min(max(1.0, (now - self._since) / 4), MAX_RETRY_PAUSE_S)

    def end(self) -> None:
        if self._since is not None:
            self._report("The tracking store answers again.")
        self._since, self.retry_at = None, 0.0

    def has_lasted_too_long(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > MAX_STORE_WAIT_S
