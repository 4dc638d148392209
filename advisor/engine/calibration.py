"""Corrects the confidences of findings: `calibration.csv`, from `benchmarks/quality/calibration.py`.

A rule states a confidence from its test. The table holds, for each rule, how often its advice was right in simulated studies whose
truth is known, at several stated confidences. The confidence in a report is interpolated between them: it is the probability that
the advice is right.
"""

from __future__ import annotations

import csv
import importlib
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from advisor.engine.registry import BUILT_IN
from advisor.engine.relation import MIN_CONFIDENCE
from advisor.model.finding import Finding

FILE = "calibration.csv"


@dataclass(frozen=True)
class Knot:
    """A point of one rule's calibration map."""

    rule: str
    stated: float
    """Confidence that the rule states."""
    right: float
    """Probability that the advice is right."""
    findings: int
    """Number of findings that the point was measured on."""


def path_of_table() -> Path:
    """Return the path of the table, which is in the folder of the built-in rules."""
    return Path(importlib.import_module(BUILT_IN).__path__[0]) / FILE


@lru_cache(maxsize=1)
def table() -> dict[str, tuple[Knot, ...]]:
    """Return the map of each rule that has one, in increasing order of the stated confidence."""
    path = path_of_table()
    knots: dict[str, list[Knot]] = defaultdict(list)
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                knot = Knot(row["rule"], float(row["stated"]), float(row["right"]), int(row["findings"]))
                knots[knot.rule].append(knot)
    return {rule: tuple(sorted(points, key=lambda k: k.stated)) for rule, points in knots.items()}


def corrected(stated: float, knots: tuple[Knot, ...]) -> float:
    """Return the confidence by linear interpolation between the knots, and constant beyond them; unchanged without knots."""
    if not knots:
        return stated
    for left, right in pairwise(knots):
        if left.stated <= stated <= right.stated and left.stated < right.stated:
            share = (stated - left.stated) / (right.stated - left.stated)
            return left.right + share * (right.right - left.right)
    return knots[0].right if stated < knots[0].stated else knots[-1].right


def calibrated(finding: Finding) -> Finding:
    """Return the finding with the probability that its advice is right as its confidence.

    A warning whose advice is more likely wrong than right becomes a note: the planner changes no study because of it.
    """
    confidence = round(corrected(finding.confidence, table().get(finding.rule, ())), 3)
    if confidence == finding.confidence:
        return finding
    doubtful = finding.severity == "warning" and confidence < MIN_CONFIDENCE
    severity = "note" if doubtful else finding.severity
    return finding.model_copy(update={"confidence": confidence, "severity": severity})


def in_words(rule: str) -> str | None:
    """Return how often the rule's advice was right in simulated studies, in one sentence; None if it was not measured."""
    knots = table().get(rule, ())
    if not knots:
        return None
    findings = sum(k.findings for k in knots)
    share = sum(k.findings * k.right for k in knots) / findings
    return (
        f"In simulated studies whose truth is known, the advice was right in {100 * share:.0f} % of {findings} findings "
        "(`python benchmarks/quality/calibration.py`). The confidence in a report is corrected accordingly."
    )
