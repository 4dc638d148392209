"""Corrects the confidences of findings with `calibration.csv`, which `benchmarks/quality/calibration.py` writes.

A rule computes a confidence from a statistical test. For several values of it, the table lists the share of findings whose
advice was right in simulated studies with a known optimum; reports show the interpolated share.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.engine.registry import path_of_rule_table
from advisor.engine.relation import MIN_CAUSE_CONFIDENCE
from advisor.model.finding import Finding

CALIBRATION_FILE_NAME = "calibration.csv"


@dataclass(frozen=True)
class CalibrationPoint:
    """One point of a rule's map from its own confidence to the probability that its advice is right."""

    rule: str
    stated: float
    right: float
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
    """Return the confidence, interpolated between the points of the map and constant beyond; `stated` without points."""
    if not knots:
        return stated
    return float(np.interp(stated, [k.stated for k in knots], [k.right for k in knots]))


def calibrate_finding(finding: Finding, *, measured: bool = True) -> Finding:
    """Return the finding with the probability that its advice is right as confidence. measured: False if the rule's map does
    not hold for it, so that only its `doubt` counts. A warning that is more likely wrong than right becomes a note, on which
    planning does not act."""
    knots = table().get(finding.rule, ()) if measured else ()
    confidence = round(corrected_confidence(finding.confidence, knots) * finding.doubt, 3)
    update: dict[str, object] = {"confidence": confidence, "doubt": 1.0}
    if finding.severity == "warning" and confidence < min(MIN_CAUSE_CONFIDENCE, finding.confidence):
        update["severity"] = "note"
    return finding.model_copy(update=update)


def describe_calibration(rule: str) -> str | None:
    """Return a sentence on how often the rule's advice was right in simulated studies; None if this was not measured."""
    knots = table().get(rule, ())
    if not knots:
        return None
    findings = sum(k.findings for k in knots)
    share = sum(k.findings * k.right for k in knots) / findings
    return (
        f"In simulated studies whose truth is known, the advice was right in {100 * share:.0f} % of {findings} findings "
        "(`python benchmarks/quality/calibration.py`). Reports correct the confidence of this rule accordingly."
    )
