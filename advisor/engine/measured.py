"""Accuracy of each rule on labelled studies: `rules/measured.csv`, written by `benchmarks/quality/diagnosis.py --write`."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from advisor.engine.registry import BUILT_IN

FILE = "measured.csv"
SIZES: Sequence[tuple[int, str]] = ((1, "1"), (8, "2 to 8"), (32, "9 to 32"), (10**9, "over 32"))
"""Numbers of trials that are counted together: (the most, in words)."""


@dataclass(frozen=True)
class Measured:
    """What was counted for one rule on studies of one size; near-identical cases count as one together, so counts may be broken."""

    rule: str
    trials: str
    """Number of trials, in words."""
    positives: float
    """Studies in which the rule must fire."""
    detected: float
    negatives: float
    """Studies in which it must not."""
    false_alarms: float
    not_assessed: float
    """Studies of either kind in which it lacked data."""

    def row(self) -> tuple[str, ...]:
        """As a row of the file."""
        values = [getattr(self, f.name) for f in fields(self)]
        return tuple(v if isinstance(v, str) else f"{v:.4g}" for v in values)


def size(trials: int) -> str:
    """The size, in words, that a study of so many trials has."""
    return next(words for most, words in SIZES if trials <= most)


def path_of_table() -> Path:
    """The file of measured rates, beside the built-in rules."""
    return Path(importlib.import_module(BUILT_IN).__path__[0]) / FILE


@lru_cache(maxsize=1)
def _all() -> dict[str, tuple[Measured, ...]]:
    path = path_of_table()
    if not path.is_file():
        return {}
    found: dict[str, list[Measured]] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rule, trials, counts = row.pop("rule"), row.pop("trials"), {k: float(v) for k, v in row.items()}
            found.setdefault(rule, []).append(Measured(rule, trials, **counts))
    return {rule: tuple(rows) for rule, rows in found.items()}


def measured(rule: str) -> tuple[Measured, ...]:
    """What is known of a rule, smaller studies first; nothing of rules that have no labelled cases."""
    return _all().get(rule, ())


def in_words(rows: Iterable[Measured]) -> str | None:
    """One sentence on all sizes together; None where there is nothing to say."""
    rows = list(rows)
    positives, detected = sum(r.positives for r in rows), sum(r.detected for r in rows)
    negatives, alarms = sum(r.negatives for r in rows), sum(r.false_alarms for r in rows)
    hits = f"{_count(detected)} of {_count(positives)} labelled studies that have it"
    errors = f"{_count(alarms)} of {_count(negatives)}"
    if positives and negatives:
        return f"fired in {hits} and in {errors} that do not"
    if negatives:
        return f"fired in {errors} labelled studies that do not have it"
    return f"fired in {hits}" if positives else None


def _count(weight: float) -> str:
    return f"{round(weight, 1):g}"
