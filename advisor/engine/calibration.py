"""Corrects the confidences of findings with `calibration.csv`, which `benchmarks/quality/calibration.py` writes.

A rule computes the confidence of a finding from a statistical test. For each rule and several confidence values, the table
lists the share of findings whose advice was right in simulated studies with a known optimum. Reports interpolate between the
shares in the table, and show the result as the probability that the advice is right.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from advisor.engine.registry import path_of_rule_table
from advisor.engine.relation import MIN_CAUSE_CONFIDENCE
from advisor.model.finding import Finding

CALIBRATION_FILE_NAME = "calibration.csv"


@dataclass(frozen=True)
class CalibrationPoint:
    """One point of a rule's calibration map, which maps the rule's own confidence to the probability that its advice is right."""

    rule: str
    stated: float
    """Confidence that the rule itself computes."""
    right: float
    """Probability that the advice of the finding is right."""
    findings: int
    """Number of findings from which the probability was estimated."""


@lru_cache(maxsize=1)
def table() -> dict[str, tuple[CalibrationPoint, ...]]:
    """Return the calibration map of each rule that has one, sorted by the rule's own confidence."""
    path = path_of_rule_table(CALIBRATION_FILE_NAME)
    knots: dict[str, list[CalibrationPoint]] = defaultdict(list)
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                knot = CalibrationPoint(row["rule"], float(row["stated"]), float(row["right"]), int(row["findings"]))
                knots[knot.rule].append(knot)
    return {rule: tuple(sorted(points, key=lambda k: k.stated)) for rule, points in knots.items()}


def corrected_confidence(stated: float, knots: tuple[CalibrationPoint, ...]) -> float:
    """Return the corrected confidence: interpolated linearly between the points of the map, constant beyond them, and equal to
    `stated` without any points."""
    if not knots:
        return stated
    for left_knot, right_knot in pairwise(knots):
        if left_knot.stated <= stated <= right_knot.stated and left_knot.stated < right_knot.stated:
            share = (stated - left_knot.stated) / (right_knot.stated - left_knot.stated)
            return left_knot.right + share * (right_knot.right - left_knot.right)
    return knots[0].right if stated < knots[0].stated else knots[-1].right


def calibrate_finding(finding: Finding, *, measured: bool = True) -> Finding:
    """Return the finding with its confidence replaced by the probability that its advice is right.

    measured: True if the rule's calibration map was measured on findings of this kind; if False, the function only multiplies
    the confidence by the finding's `doubt`. A warning becomes a note if its advice is more likely wrong than right, so that
    planning does not act on it.
    """
    knots = table().get(finding.rule, ()) if measured else ()
    confidence = round(corrected_confidence(finding.confidence, knots) * finding.doubt, 3)
    update: dict[str, object] = {"confidence": confidence, "doubt": 1.0}
    if finding.severity == "warning" and confidence < min(MIN_CAUSE_CONFIDENCE, finding.confidence):
        update["severity"] = "note"
    return finding.model_copy(update=update)


def describe_calibration(rule: str) -> str | None:
    """Return a sentence that states how often the rule's advice was right in simulated studies; None if this was not measured."""
    knots = table().get(rule, ())
    if not knots:
        return None
    findings = sum(k.findings for k in knots)
    share = sum(k.findings * k.right for k in knots) / findings
    return (
        f"In simulated studies whose truth is known, the advice was right in {100 * share:.0f} % of {findings} findings "
        "(`python benchmarks/quality/calibration.py`). Reports correct the confidence of this rule accordingly."
    )
