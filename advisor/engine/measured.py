"""Reads how often rules fired on labelled studies and in small real trainings.

`benchmarks/quality/diagnosis.py` writes `measured.csv`; `lm_rules.py` and `finetuning.py` write `trained.csv` with `--write`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from advisor.engine.registry import path_of_rule_table

MEASURED_FILE_NAME = "measured.csv"
TRAINED_FILE_NAME = "trained.csv"
STUDY_SIZE_GROUPS: Sequence[tuple[int, str]] = ((1, "1"), (8, "2 to 8"), (32, "9 to 32"), (10**9, "over 32"))
"""Groups of study sizes for which rates are computed separately: (maximum number of trials, group name)."""
MIN_STUDIES_FOR_RATE = 10
"""Minimum number of studies to state a rate; a rate from fewer studies, such as 1 of 1, says almost nothing."""


@dataclass(frozen=True)
class MeasuredCounts:
    """Findings of one rule on labelled studies of one size group; near-identical studies count as one, so counts can be
    fractional."""

    rule: str
    trials: str
    """Size group of the studies, in words."""
    positives: float
    """Studies in which the rule must fire."""
    detected: float
    negatives: float
    """Studies in which the rule must not fire."""
    false_alarms: float
    not_assessed: float
    """Studies that lack the data that the rule needs."""

    def csv_row(self) -> tuple[str, ...]:
        values = [getattr(self, f.name) for f in fields(self)]
        return tuple(v if isinstance(v, str) else f"{v:.4g}" for v in values)


def _read_rows(file: str) -> list[dict[str, str]]:
    path = path_of_rule_table(file)
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def size(trials: int) -> str:
    """Return the name of the size group of a study with this number of trials."""
    return next(words for limit, words in STUDY_SIZE_GROUPS if trials <= limit)


@lru_cache(maxsize=1)
def _all_measured_counts() -> dict[str, tuple[MeasuredCounts, ...]]:
    table: dict[str, tuple[MeasuredCounts, ...]] = {}
    for row in _read_rows(MEASURED_FILE_NAME):
        rule, trials, counts = row.pop("rule"), row.pop("trials"), {k: float(v) for k, v in row.items()}
        table[rule] = (*table.get(rule, ()), MeasuredCounts(rule, trials, **counts))
    return table


def measured_counts(rule: str) -> tuple[MeasuredCounts, ...]:
    """Return the counts of a rule, smallest studies first; empty if no labelled study tests it."""
    return _all_measured_counts().get(rule, ())


def describe_measured_rates(rows: Iterable[MeasuredCounts]) -> str | None:
    """Return a sentence with the rates over all study sizes; None if there are too few studies."""
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


# --- small real trainings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedCounts:
    """Findings of one rule in studies of small real trainings, with the problem that it detects switched on or off."""

    rule: str
    script: str
    """Script in `benchmarks/quality` that runs the studies, with arguments that choose a trainer."""
    positives: int
    """Number of studies with the problem that the rule detects."""
    detected: int
    negatives: int
    """Number of studies without the problem that the rule detects."""
    false_alarms: int

    def rate_texts(self) -> tuple[str, str]:
        """Return in how many studies with and without the problem the rule fired."""
        return f"{self.detected} of {self.positives}", f"{self.false_alarms} of {self.negatives}"


def trained_table() -> tuple[TrainedCounts, ...]:
    """Return all rows; empty if the file is missing."""
    rows = _read_rows(TRAINED_FILE_NAME)
    return tuple(TrainedCounts(row.pop("rule"), row.pop("script"), **{k: int(v) for k, v in row.items()}) for row in rows)


def trained_counts(rule: str) -> tuple[TrainedCounts, ...]:
    return tuple(row for row in trained_table() if row.rule == rule)


def replace_script_rows(script: str, rows: Iterable[TrainedCounts]) -> None:
    """Replace the rows of a benchmark script in the table."""
    names = [f.name for f in fields(TrainedCounts)]
    kept = [row for row in trained_table() if row.script != script]
    with path_of_rule_table(TRAINED_FILE_NAME).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(names)
        lines.writerows([getattr(row, n) for n in names] for row in sorted([*kept, *rows], key=lambda r: (r.rule, r.script)))
