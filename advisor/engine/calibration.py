"""Corrects the confidences of findings with `calibration.csv`, which `benchmarks/quality/calibration.py` writes.

A rule computes a confidence from a statistical test. For several confidences of a rule, the table lists the share of findings whose
advice was right in simulated studies with a known optimum. Reports show the interpolated share as the confidence of a finding.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.engine.registry import read_rule_table
from advisor.engine.relation import MIN_CAUSE_CONFIDENCE
from advisor.model.finding import Finding

CALIBRATION_FILE_NAME = "calibration.csv"


@dataclass(frozen=True)
class CalibrationPoint:
    """The probability that the advice of a rule is right, for one value of the confidence that the rule states."""

    rule: str
    stated: float
    right: float
    findings: int
    """Number of findings from which the probability was estimated."""


@lru_cache(maxsize=1)
def calibration_table() -> dict[str, tuple[CalibrationPoint, ...]]:
    """Return the calibration points of each calibrated rule, sorted by the confidence that the rule states."""
    points_by_rule: dict[str, list[CalibrationPoint]] = defaultdict(list)
    for row in read_rule_table(CALIBRATION_FILE_NAME):
        point = CalibrationPoint(row["rule"], float(row["stated"]), float(row["right"]), int(row["findings"]))
        points_by_rule[point.rule].append(point)
    return {rule: tuple(sorted(points, key=lambda k: k.stated)) for rule, points in points_by_rule.items()}


def corrected_confidence(stated: float, points: tuple[CalibrationPoint, ...]) -> float:
    """Return the confidence `stated`, corrected by interpolation between the calibration points."""
    if not points:
        return stated
    return float(np.interp(stated, [k.stated for k in points], [k.right for k in points]))


def calibrate_finding(finding: Finding, *, measured: bool = True) -> Finding:
    """Return the finding; its confidence is the probability that its advice is right. measured: False if the calibration of the
    rule does not hold for this finding, so that only the factor `doubt` is applied. A warning that is more likely wrong than
    right becomes a note, on which planning does not act."""
    points = calibration_table().get(finding.rule, ()) if measured else ()
    confidence = round(corrected_confidence(finding.confidence, points) * finding.doubt, 3)
    changed_fields: dict[str, object] = {"confidence": confidence, "doubt": 1.0}
    if finding.severity == "warning" and confidence < min(MIN_CAUSE_CONFIDENCE, finding.confidence):
        changed_fields["severity"] = "note"
    return finding.model_copy(update=changed_fields)


def describe_calibration(rule: str) -> str | None:
    """Return a sentence that says how often the rule's advice was right in simulated studies; None if unmeasured."""
    points = calibration_table().get(rule, ())
    if not points:
        return None
    finding_count = sum(k.findings for k in points)
    share_right = sum(k.findings * k.right for k in points) / finding_count
    return (
        f"In simulated studies whose truth is known, the advice was right in {100 * share_right:.0f} % of {finding_count} findings "
        "(`python benchmarks/quality/calibration.py`). Reports correct the confidence of this rule accordingly."
    )
