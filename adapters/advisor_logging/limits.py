"""Converts texts and numbers to values that every store accepts, before they are written to the spool folder."""

from __future__ import annotations

import re

from advisor_logging.table import Table

MAX_NAME_CHARS = 250
MAX_VALUE_CHARS = 5000
"""Maximum characters in the value of a tag or param: the smallest limit of any MLflow server version."""
MAX_STEP = 2**53
"""Maximum step, and maximum time in milliseconds: the spool stores 64-bit floats, which cannot represent all larger integers."""

_REFUSED_CHARS = re.compile("[\0\ud800-\udfff]")
"""Characters that stores refuse: PostgreSQL refuses NUL, and surrogates stand for bytes that are not valid UTF-8."""


def clean_text(value: object) -> str:
    """Convert an object to text, without the characters that some stores refuse. Never raises."""
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return _REFUSED_CHARS.sub("\ufffd", text)


def clean_name(value: object) -> str:
    """Convert an object to a name that every store accepts."""
    return clean_text(value)[:MAX_NAME_CHARS]


def clean_time(time_ms: float) -> int:
    """Clamp a time (milliseconds since 1970) to the valid range, because a wrong system clock may show a time before 1970."""
    return int(min(max(time_ms, 0), MAX_STEP))


def clean_table(table: Table) -> Table:
    """Return the table without the rows whose step is outside the valid range. Times outside the valid range are clamped to it."""
    if not all(0 <= time_ms <= MAX_STEP for time_ms in table.times_ms):
        table = Table(table.steps, [clean_time(time_ms) for time_ms in table.times_ms], table.columns)
    valid = [i for i, step in enumerate(table.steps) if abs(step) <= MAX_STEP]
    return table if len(valid) == len(table) else table.select_rows(valid)
