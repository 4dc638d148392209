"""Defines the record that the guard writes into a tag of a run that it stops. This module uses only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

_MAX_REASON_CHARS = 600
"""Maximum number of characters that tracking servers of all versions accept."""
_STOP_PREDICATES = {"doomed": "could not become the best", "not_finite": "had an objective that was not finite"}


@dataclass(frozen=True, slots=True)
class GuardStop:
    """The guard's decision to stop a training, stored in the tag `contract.TAG_GUARD_STOP`."""

    state: str
    """State of the verdict: doomed or not_finite."""
    step: int
    reason: str
    """Message of the guard, or an empty text if the record contains no message."""
    at: float = 0.0
    """Time of the stop in seconds since 1970, or 0 if unknown."""
    length: float | None = None
    """Planned number of steps of the training, or None if unknown."""

    @property
    def status(self) -> str:
        """Status that the stopped trial gets, one of `contract.STATUSES`."""
        return "diverged" if self.state == "not_finite" else "pruned"

    @property
    def stop_reason_phrase(self) -> str:
        """Reason for the stop as a phrase without numbers, such as "could not become the best"."""
        return _STOP_PREDICATES.get(self.state, "had another reason")

    def tag_text(self) -> str:
        """Return the text for the tag, in which a long reason is truncated."""
        content = asdict(self)
        if self.length is None:
            del content["length"]
        return json.dumps({**content, "reason": self.reason[:_MAX_REASON_CHARS]})


def is_last_step(step: float, length: float | None) -> bool:
    """Return True if `step`, counted from 0 or from 1, is the last step of a training with `length` steps."""
    return length is not None and step + 1 >= length


def read_guard_stop(text: str | None) -> GuardStop | None:
    """Parse the tag `contract.TAG_GUARD_STOP`. Return None if the tag is missing or invalid."""
    try:
        record = json.loads(text or "")
        state, step, at, length = record["state"], int(record["step"]), float(record.get("at", 0.0)), record.get("length")
        if not isinstance(state, str):
            return None
        reason = record.get("reason", "")
        return GuardStop(
            state, max(0, step), reason if isinstance(reason, str) else "", at, None if length is None else float(length)
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
