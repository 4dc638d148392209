"""Reads how often rules fired on small real training runs in which the problem that a rule detects was switched on or off.

The file `trained.csv` contains the counts. `benchmarks/quality/lm_rules.py` and `finetuning.py` write the file when called with
`--write`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields

from advisor.engine.registry import path_of_rule_table

FILE = "trained.csv"


@dataclass(frozen=True)
class TrainedCounts:
    """Counts of one rule's findings in the studies of small real training runs of one benchmark script."""

    rule: str
    script: str
    """Name of the script in `benchmarks/quality` that runs the studies. If the script supports several trainers, its arguments
    are part of the name."""
    positives: int
    """Number of studies with the problem that the rule detects."""
    detected: int
    negatives: int
    """Number of studies without the problem that the rule detects."""
    false_alarms: int

    def rate_texts(self) -> tuple[str, str]:
        """Return, as text, in how many studies with and without the problem the rule fired."""
        return f"{self.detected} of {self.positives}", f"{self.false_alarms} of {self.negatives}"


def table() -> tuple[TrainedCounts, ...]:
    """Return all rows of the table of counts; empty if its file is missing."""
    if not path_of_rule_table(FILE).is_file():
        return ()
    with path_of_rule_table(FILE).open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return tuple(TrainedCounts(row.pop("rule"), row.pop("script"), **{k: int(v) for k, v in row.items()}) for row in rows)


def trained_counts(rule: str) -> tuple[TrainedCounts, ...]:
    """Return the rows of the table of counts for one rule."""
    return tuple(row for row in table() if row.rule == rule)


def replace_script_rows(script: str, rows: Iterable[TrainedCounts]) -> None:
    """Replace the rows of a benchmark script in the table of counts."""
    names = [f.name for f in fields(TrainedCounts)]
    kept = [row for row in table() if row.script != script]
    with path_of_rule_table(FILE).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(names)
        lines.writerows([getattr(row, n) for n in names] for row in sorted([*kept, *rows], key=lambda r: (r.rule, r.script)))
