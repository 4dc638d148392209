"""The correction of confidences, and its table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from studies import make_study

from advisor.computed.space import sampler
from advisor.engine import calibration
from advisor.engine.calibration import CalibrationPoint, calibrate_finding, calibration_table, corrected_confidence
from advisor.engine.judge import judge
from advisor.engine.pages import rule_page
from advisor.engine.registry import load_rules
from advisor.model.finding import Finding

KNOTS = (CalibrationPoint("mine", 0.6, 0.4, 50), CalibrationPoint("mine", 0.8, 0.5, 50), CalibrationPoint("mine", 1.0, 0.9, 50))


def finding(confidence: float, rule: str = "mine") -> Finding:
    return Finding(rule=rule, goal="steps", severity="note", confidence=confidence, message="M.", action="A.", playbook="P")


@pytest.mark.parametrize(("stated", "shown"), [(0.1, 0.4), (0.6, 0.4), (0.7, 0.45), (0.9, 0.7), (1.0, 0.9)])
def test_a_confidence_is_interpolated_and_constant_beyond_the_knots(stated, shown):
    assert corrected_confidence(stated, KNOTS) == pytest.approx(shown)
    assert corrected_confidence(stated, ()) == stated


def test_a_doubt_applies_after_the_map_and_once(monkeypatch):
    monkeypatch.setattr(
        calibration,
        "calibration_table",
        lambda: {"mine": (CalibrationPoint("mine", 0.6, 0.7, 50), CalibrationPoint("mine", 1.0, 0.7, 50))},
    )
    shown = calibrate_finding(sampler.weaken_finding(finding(0.9)))
    assert (shown.confidence, shown.doubt) == (0.56, 1.0)
    assert calibrate_finding(sampler.weaken_finding(finding(0.9)), measured=False).confidence == 0.72
    assert "doubt" not in shown.model_dump()


def test_findings_that_the_map_was_not_measured_on_are_not_corrected(monkeypatch):
    study = make_study([{"lr": 0.1 / (i + 1), "seed": 7} for i in range(8)], {"val/loss": [[1.0, 0.5]] * 8})
    (rule,) = [r for r in load_rules() if r.rule_id() == "seeds"]
    monkeypatch.setattr(calibration, "calibration_table", lambda: {"seeds": (CalibrationPoint("seeds", 0.9, 0.3, 50),)})
    (stated,) = judge(study, [rule], calibrate=False)[0].findings
    assert stated.subject is not None
    monkeypatch.setattr(type(rule), "unmeasured", frozenset({stated.subject}))
    assert judge(study, [rule])[0].findings == (stated,)


def test_only_rules_with_a_map_are_corrected(monkeypatch):
    monkeypatch.setattr(calibration, "calibration_table", lambda: {"mine": KNOTS})
    assert calibrate_finding(finding(0.7)).confidence == 0.45
    assert calibrate_finding(finding(0.7, "other")) == finding(0.7, "other")


def test_a_warning_that_is_more_likely_wrong_becomes_a_note(monkeypatch):
    monkeypatch.setattr(calibration, "calibration_table", lambda: {"mine": KNOTS})
    warning = finding(0.7).model_copy(update={"severity": "warning"})
    assert calibrate_finding(warning).severity == "note"
    assert calibrate_finding(warning.model_copy(update={"confidence": 0.9})).severity == "warning"


def test_the_table_is_of_rules_that_exist_and_rises():
    known = {r.rule_id() for r in load_rules()}
    assert calibration_table().keys() <= known
    assert len(calibration_table()) >= 6
    for knots in calibration_table().values():
        assert all(0 < k.right < 1 and 0 <= k.stated <= 1 and k.findings > 0 for k in knots)
        assert all(a.stated < b.stated and a.right <= b.right for a, b in pairwise(knots))


def test_judging_corrects_what_a_rule_states(monkeypatch):
    study = make_study([{"lr": 0.1 / (i + 1), "seed": 7} for i in range(8)], {"val/loss": [[1.0, 0.5]] * 8})
    (rule,) = [r for r in load_rules() if r.rule_id() == "seeds"]
    monkeypatch.setattr(calibration, "calibration_table", lambda: {"seeds": (CalibrationPoint("seeds", 0.9, 0.3, 50),)})
    stated, shown = (judge(study, [rule], calibrate=c)[0].findings[0].confidence for c in (False, True))
    assert (stated, shown) == (0.95, 0.3)


def test_a_rules_page_says_how_often_its_advice_is_right(monkeypatch):
    (rule,) = [r for r in load_rules() if r.rule_id() == "seeds"]
    assert "the advice was right" not in rule_page(type(rule))
    monkeypatch.setattr(calibration, "calibration_table", lambda: {"seeds": KNOTS})
    assert "the advice was right in 60 % of 150 findings" in rule_page(type(rule))
