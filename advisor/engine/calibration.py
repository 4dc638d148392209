"""Corrects the confidences of findings by `calibration.csv`, which `benchmarks/quality/calibration.py` writes.

A rule computes its stated confidence from a test. For each rule and several stated confidences, the table contains the share of
findings whose advice was right in simulated studies with a known optimum. Reports show a value interpolated between these shares:
the probability that the advice is right.
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
    """A point of one rule's calibration map, from stated confidence to the probability that the advice is right."""

    rule: str
    stated: float
    """Confidence that the rule states."""
    right: float
    """Probability that the advice is right."""
    findings: int
    """Number of findings from which this point was computed."""


def path_of_table() -> Path:
    """Return the path of the table in the folder of the built-in rules."""
    return Path(importlib.import_module(BUILT_IN).__path__[0]) / FILE


@lru_cache(maxsize=1)
def table() -> dict[str, tuple[Knot, ...]]:
    """Return the calibration map of each rule that has one; the points of a map are sorted by stated confidence."""
    path = path_of_table()
    knots: dict[str, list[Knot]] = defaultdict(list)
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                knot = Knot(row["rule"], float(row["stated"]), float(row["right"]), int(row["findings"]))
                knots[knot.rule].append(knot)
    return {rule: tuple(sorted(points, key=lambda k: k.stated)) for rule, points in knots.items()}


def corrected(stated: float, knots: tuple[Knot, ...]) -> float:
    """Return the corrected confidence: interpolated linearly between the knots, constant beyond them, and equal to `stated` if
    there are no knots.
    """
    if not knots:
        return stated
    for left_knot, right_knot in pairwise(knots):
        if left_knot.stated <= stated <= right_knot.stated and left_knot.stated < right_knot.stated:
            share = (stated - left_knot.stated) / (right_knot.stated - left_knot.stated)
            return left_knot.right + share * (right_knot.right - left_knot.right)
    return knots[0].right if stated < knots[0].stated else knots[-1].right


def calibrated(finding: Finding, *, measured: bool = True) -> Finding:
    """Return the finding with its confidence replaced by the probability that its advice is right.

    measured: True if the rule's calibration map was measured on findings of this kind; if False, only apply the finding's `doubt`.
    A warning whose advice is more likely wrong than right becomes a note, so that planning does not act on it.
    """
    knots = table().get(finding.rule, ()) if measured else ()
    confidence = round(corrected(finding.confidence, knots) * finding.doubt, 3)
    update: dict[str, object] = {"confidence": confidence, "doubt": 1.0}
    if finding.severity == "warning" and confidence < min(MIN_CONFIDENCE, finding.confidence):
        update["severity"] = "note"
    return finding.model_copy(update=update)


def rate_in_words(rule: str) -> str | None:
    """Return a sentence that states how often the rule's advice was right in simulated studies; None if this was not measured."""
    knots = table().get(rule, ())
    if not knots:
        return None
    findings = sum(k.findings for k in knots)
    share = sum(k.findings * k.right for k in knots) / findings
    return (
        f"In simulated studies whose truth is known, the advice was right in {100 * share:.0f} % of {findings} findings "
        "(`python benchmarks/quality/calibration.py`). The confidence in a report is corrected accordingly."
    )
