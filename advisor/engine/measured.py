"""Reads how often rules fired on labelled studies and in small real trainings.

`benchmarks/quality/diagnosis.py` writes `measured.csv`; `lm_rules.py` and `finetuning.py` write `trained.csv` with `--write`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from advisor.engine.registry import path_of_rule_table, read_rule_table

MEASURED_FILE_NAME = "measured.csv"
TRAINED_FILE_NAME = "trained.csv"
STUDY_SIZE_GROUPS: Sequence[tuple[int, str]] = ((1, "1"), (8, "2 to 8"), (32, "9 to 32"), (10**9, "over 32"))
"""Groups of study sizes for which rates are computed separately: (maximum number of trials, group name)."""
MIN_STUDIES_FOR_RATE = 10
"""Minimum number of studies to state a rate; a rate from fewer studies, such as 1 of 1, says almost nothing."""


@dataclass(frozen=True)
class MeasuredCounts:
    """Number of labelled studies of one size group in which a rule fired; near-identical studies count once."""

    rule: str
    trials: str
    """Name of the size group of the studies, such as "2 to 8" trials."""
    positives: float
    """Studies in which the rule must fire."""
    detected: float
    negatives: float
    """Studies in which the rule must not fire."""
    false_alarms: float
    not_assessed: float
    """Studies that lack the data that the rule needs."""

    def csv_row(self) -> tuple[str, ...]:
        field_values = [getattr(self, f.name) for f in fields(self)]
        return tuple(v if isinstance(v, str) else f"{v:.4g}" for v in field_values)


def size_group(trials: int) -> str:
    """Return the name of the size group of a study with this number of trials."""
    return next(words for limit, words in STUDY_SIZE_GROUPS if trials <= limit)


@lru_cache(maxsize=1)
def _all_measured_counts() -> dict[str, tuple[MeasuredCounts, ...]]:
    counts_by_rule: dict[str, tuple[MeasuredCounts, ...]] = {}
    for row in read_rule_table(MEASURED_FILE_NAME):
        rule, trials, counts = row.pop("rule"), row.pop("trials"), {k: float(v) for k, v in row.items()}
        counts_by_rule[rule] = (*counts_by_rule.get(rule, ()), MeasuredCounts(rule, trials, **counts))
    return counts_by_rule


def measured_counts(rule: str) -> tuple[MeasuredCounts, ...]:
    """Return the counts of a rule by size group, smallest studies first; empty if no labelled study tests the rule."""
    return _all_measured_counts().get(rule, ())


def describe_measured_rates(groups: Iterable[MeasuredCounts]) -> str | None:
    """Return a clause with the rates of detection and of false alarms over all study sizes; None for too few studies."""
    groups = list(groups)
    positives, detected = sum(r.positives for r in groups), sum(r.detected for r in groups)
    negatives, alarms = sum(r.negatives for r in groups), sum(r.false_alarms for r in groups)
    positives, negatives = (n if n >= MIN_STUDIES_FOR_RATE else 0 for n in (positives, negatives))
    detected_text = f"{_count_text(detected)} of {_count_text(positives)} labelled studies with the problem"
    false_alarms_text = f"{_count_text(alarms)} of {_count_text(negatives)}"
    if positives and negatives:
        return f"fired in {detected_text} and in {false_alarms_text} without it"
    if negatives:
        return f"fired in {false_alarms_text} labelled studies without the problem"
    return f"fired in {detected_text}" if positives else None


def _count_text(weight: float) -> str:
    return f"{round(weight, 1):g}"


@dataclass(frozen=True)
class TrainedCounts:
    """Number of studies of small real trainings in which a rule fired, with the problem that it detects switched on or off."""

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
        """Return two texts such as "3 of 4": in how many studies with and without the problem the rule fired."""
        return f"{self.detected} of {self.positives}", f"{self.false_alarms} of {self.negatives}"


def trained_table() -> tuple[TrainedCounts, ...]:
    """Return all rows of `trained.csv`; empty if the file is missing."""
    csv_rows = read_rule_table(TRAINED_FILE_NAME)
    return tuple(TrainedCounts(row.pop("rule"), row.pop("script"), **{k: int(v) for k, v in row.items()}) for row in csv_rows)


def trained_counts(rule: str) -> tuple[TrainedCounts, ...]:
    return tuple(row for row in trained_table() if row.rule == rule)


def replace_script_rows(script: str, rows: Iterable[TrainedCounts]) -> None:
    """Replace the rows of a benchmark script in `trained.csv`."""
    column_names = [f.name for f in fields(TrainedCounts)]
    other_rows = [row for row in trained_table() if row.script != script]
    with path_of_rule_table(TRAINED_FILE_NAME).open("w", newline="", encoding="utf-8") as file:
        csv_writer = csv.writer(file, lineterminator="\n")
        csv_writer.writerow(column_names)
        all_rows = sorted([*other_rows, *rows], key=lambda r: (r.rule, r.script))
        csv_writer.writerows([getattr(row, name) for name in column_names] for row in all_rows)
