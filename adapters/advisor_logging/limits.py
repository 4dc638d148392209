"""Changes texts and numbers to values that every store accepts, before they reach the spool."""

from __future__ import annotations

import re

from advisor_logging.table import Table

MAX_NAME_CHARS = 250
"""Maximum characters of the name of a run, tag, param or metric."""
MAX_VALUE_CHARS = 5000
"""Maximum characters of a tag or param: the smallest limit among servers of all versions."""
MAX_STEP = 2**53
"""Maximum step and maximum time in milliseconds, because the spool's 64-bit floats cannot hold larger integers exactly."""

_REFUSED_CHARS = re.compile("[\0\ud800-\udfff]")
"""NUL, which PostgreSQL refuses, and surrogates, by which Python represents bytes that are not UTF-8."""


def clean_text(value: object) -> str:
    """Return any object as text, without characters that some stores refuse. Never raises."""
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return _REFUSED_CHARS.sub("\ufffd", text)


def clean_name(value: object) -> str:
    """Return any object as a name that every store accepts."""
    return clean_text(value)[:MAX_NAME_CHARS]


def clean_time(time_ms: float) -> int:
    """Return a time in milliseconds since 1970, clamped to the valid range, because a wrong clock may show a time before 1970."""
    return int(min(max(time_ms, 0), MAX_STEP))


def clean_table(table: Table) -> Table:
    """Return the rows of the table with valid steps. Invalid times are clamped to the valid range."""
    if not all(0 <= time_ms <= MAX_STEP for time_ms in table.times_ms):
        table = Table(table.steps, [clean_time(time_ms) for time_ms in table.times_ms], table.columns)
    valid = [i for i, step in enumerate(table.steps) if abs(step) <= MAX_STEP]
    return table if len(valid) == len(table) else table.select_rows(valid)
