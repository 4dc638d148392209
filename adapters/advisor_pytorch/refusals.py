"""Counts the values that could not be logged; warns about the first such value of each kind, and at the end about their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from advisor.contract.redact import one_line_error

_IRREGULAR_PLURALS = {"loss": "losses"}
_UNCOUNTED_KIND = "tag"
"""Kind of refused value that does not count as a metric point."""


class RefusedValues:
    """Counts the values of one run that could not be logged."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        """`warn` logs a one-line warning, once per key."""
        self._counts: Counter[str] = Counter()
        self._warn = warn

    def add(self, kind: str, error: Exception) -> None:
        """Count a value that could not be logged, and warn about the first such value of its kind."""
        self._counts[kind] += 1
        article = "an" if kind[0] in "aeiou" else "a"
        self._warn(kind, f"{article} {kind} could not be logged ({one_line_error(error)}); training continues")

    def add_metric(self, name: str, error: Exception) -> None:
        """Count a metric value that could not be logged, and warn about the first such value of each metric."""
        self._counts["metric value"] += 1
        self._warn(f"evaluate {name}", f"{name!r} could not be logged ({one_line_error(error)}); training continues")

    def warn_about_total(self, failed_steps: int) -> int:
        """If several values of one kind could not be logged, log one warning with the number of values of each kind. Return the
        number of lost metric points."""
        counts = self._counts + Counter({"step": failed_steps})
        if any(number > 1 for number in counts.values()):
            parts = ", ".join(_count_phrase(number, kind) for kind, number in counts.items())
            self._warn("sum", f"{parts} could not be logged in this run")
        return counts.total() - counts[_UNCOUNTED_KIND]


def _count_phrase(number: int, kind: str) -> str:
    return f"{number:,} {kind if number == 1 else _IRREGULAR_PLURALS.get(kind, kind + 's')}"
