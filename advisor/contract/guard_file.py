"""The file through which `advisor guard --watch` passes its latest verdict, one JSON object, to the training's hook."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypedDict


class GuardVerdict(TypedDict):
    state: str
    """State of the trial, as in `advisor.engine.guard`: doomed, not_finite, diverging, stuck, fine or unknown."""
    step: int
    """Step of the last evaluation; 0 if no evaluation was logged."""
    stop: bool
    """True if the evidence suffices for stopping the training."""
    message: str
    at: float
    """Time of the verdict in seconds since 1970."""


def write_verdict(path: Path, verdict: GuardVerdict) -> None:
    """Replace the verdict file atomically. Raises OSError if the folder is not writable."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_text(json.dumps(verdict), encoding="utf-8")
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def read_verdict(path: Path) -> GuardVerdict | None:
    """Return the latest verdict, or None if the verdict file is missing or damaged."""
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data["stop"], bool):
            return None
        state, message = str(data["state"]), str(data["message"])
        return GuardVerdict(state=state, step=int(data["step"]), stop=data["stop"], message=message, at=float(data["at"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
