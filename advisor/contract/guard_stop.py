"""The record that the guard leaves on a trial it stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuardStop:
    """Why and where the guard stopped a trial, see `advisor.contract.TAG_STOPPED`."""

    state: str
    step: int
    reason: str
    """The guard's message; empty if it is missing."""

    @property
    def predicate(self) -> str:
        """The reason without its numbers, as a predicate: "could not become the best"."""
        return _PREDICATES.get(self.state, "had another reason")


_PREDICATES = {"doomed": "could not become the best", "not_finite": "had an objective that was not finite"}


def read_guard_stop(text: str) -> GuardStop | None:
    """Return the record in a tag's text; None if the text is no such record."""
    try:
        found = json.loads(text)
        state, step, reason = found["state"], int(found["step"]), found.get("reason", "")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return GuardStop(state, max(0, step), reason if isinstance(reason, str) else "") if isinstance(state, str) else None
