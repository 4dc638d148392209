"""Converts texts and numbers to values that every store accepts, before they are written to the spool folder."""

from __future__ import annotations

import re

from advisor_logging.table import MetricTable

MAX_NAME_CHARS = 250
MAX_VALUE_CHARS = 5000
"""Maximum number of characters in the value of a tag or param: the smallest limit among all versions of the MLflow server."""
MAX_EXACT_STEP = 2**53
"""Maximum step number, and time in ms: the spool stores 64-bit floats, which are exact for integers up to here."""

_CHARS_REFUSED_BY_STORES = re.compile("[\0\ud800-\udfff]")
"""NUL, which PostgreSQL refuses, and surrogates, which represent bytes that are not valid UTF-8."""


def clean_text(value: object) -> str:
    """Convert an object to text, without the characters that some stores refuse. Never raises."""
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return _CHARS_REFUSED_BY_STORES.sub("\ufffd", text)


def clean_name(value: object) -> str:
    return clean_text(value)[:MAX_NAME_CHARS]


def clean_time(time_ms: float) -> int:
    """Clamp a time (ms since 1970) to the range that every store accepts; a wrong system clock may show a time before 1970."""
    return int(min(max(time_ms, 0), MAX_EXACT_STEP))


def clean_table(table: MetricTable) -> MetricTable:
    """Return the table without rows whose step is beyond ±`MAX_EXACT_STEP`, and with clamped times."""
    if not all(0 <= time_ms <= MAX_EXACT_STEP for time_ms in table.times_ms):
        table = MetricTable(table.steps, [clean_time(time_ms) for time_ms in table.times_ms], table.columns)
    valid_rows = [i for i, step in enumerate(table.steps) if abs(step) <= MAX_EXACT_STEP]
    return table if len(valid_rows) == len(table) else table.select_rows(valid_rows)
