"""Reads the detection and false-alarm rates of rules on labelled studies from `measured.csv`, which
`benchmarks/quality/diagnosis.py` writes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from advisor.engine.registry import path_of_rule_table

MEASURED_FILE_NAME = "measured.csv"
STUDY_SIZE_GROUPS: Sequence[tuple[int, str]] = ((1, "1"), (8, "2 to 8"), (32, "9 to 32"), (10**9, "over 32"))
"""Groups of study sizes for which rates are computed separately: (maximum number of trials, group name)."""
MIN_STUDIES_FOR_RATE = 10
"""Minimum number of studies to state a rate; a rate from fewer studies, such as 1 of 1, says almost nothing."""


@dataclass(frozen=True)
class MeasuredCounts:
    """Counts of correct and wrong findings of one rule on labelled studies of one size group. Several near-identical studies
    count as one study, so counts can be fractional.
    """

    rule: str
    trials: str
    """Size group of the studies: the number of trials, in words."""
    positives: float
    """Number of labelled studies in which the rule must fire."""
    detected: float
    negatives: float
    """Number of labelled studies in which the rule must not fire."""
    false_alarms: float
    not_assessed: float
    """Number of labelled studies that lack the data that the rule needs."""

    def csv_row(self) -> tuple[str, ...]:
        """Return the counts as a row of the CSV file."""
        values = [getattr(self, f.name) for f in fields(self)]
        return tuple(v if isinstance(v, str) else f"{v:.4g}" for v in values)


def size(trials: int) -> str:
    """Return the name of the size group of a study with this number of trials."""
    return next(words for limit, words in STUDY_SIZE_GROUPS if trials <= limit)


@lru_cache(maxsize=1)
def _all_measured_counts() -> dict[str, tuple[MeasuredCounts, ...]]:
    path = path_of_rule_table(MEASURED_FILE_NAME)
    if not path.is_file():
        return {}
    table: dict[str, list[MeasuredCounts]] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rule, trials, counts = row.pop("rule"), row.pop("trials"), {k: float(v) for k, v in row.items()}
            table.setdefault(rule, []).append(MeasuredCounts(rule, trials, **counts))
    return {rule: tuple(rows) for rule, rows in table.items()}


def measured_counts(rule: str) -> tuple[MeasuredCounts, ...]:
    """Return the counts of a rule for each size group, smallest studies first; empty if no labelled study tests the rule."""
    return _all_measured_counts().get(rule, ())


def describe_measured_rates(rows: Iterable[MeasuredCounts]) -> str | None:
    """Return a sentence with the detection and false-alarm rates over all study sizes; None if there are too few studies."""
    rows = list(rows)
    positives, detected = sum(r.positives for r in rows), sum(r.detected for r in rows)
    negatives, alarms = sum(r.negatives for r in rows), sum(r.false_alarms for r in rows)
    positives, negatives = (n if n >= MIN_STUDIES_FOR_RATE else 0 for n in (positives, negatives))
    hits = f"{_count_text(detected)} of {_count_text(positives)} labelled studies with the problem"
    errors = f"{_count_text(alarms)} of {_count_text(negatives)}"
    if positives and negatives:
        return f"fired in {hits} and in {errors} without it"
    if negatives:
        return f"fired in {errors} labelled studies without the problem"
    return f"fired in {hits}" if positives else None


def _count_text(weight: float) -> str:
    return f"{round(weight, 1):g}"
