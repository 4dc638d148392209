"""What was measured of the rules, in words and on their pages."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from advisor.engine import measured, registry
from advisor.engine.measured import (
    MEASURED_FILE_NAME,
    STUDY_SIZE_GROUPS,
    MeasuredCounts,
    TrainedCounts,
    describe_measured_rates,
    measured_counts,
    replace_script_rows,
    size_group,
    trained_counts,
    trained_table,
)
from advisor.engine.pages import beyond_playbook_table, rule_page
from advisor.engine.registry import load_rules, path_of_rule_table

LARGE = MeasuredCounts("space-boundary", "9 to 32", positives=20, detected=18.5, negatives=30, false_alarms=1, not_assessed=5)


def test_sizes_have_no_gaps():
    assert [size_group(n) for n in (1, 2, 8, 9, 32, 33, 5000)] == [
        "1",
        "2 to 8",
        "2 to 8",
        "9 to 32",
        "9 to 32",
        "over 32",
        "over 32",
    ]


def test_all_sizes_in_one_sentence():
    small = MeasuredCounts("space-boundary", "2 to 8", positives=4, detected=2, negatives=0, false_alarms=0, not_assessed=1)
    assert (
        describe_measured_rates([small, LARGE])
        == "fired in 20.5 of 24 labelled studies with the problem and in 1 of 30 without it"
    )
    assert describe_measured_rates([small] * 3) == "fired in 6 of 12 labelled studies with the problem"
    never = MeasuredCounts("seeds", "1", positives=0, detected=0, negatives=18, false_alarms=0, not_assessed=0)
    assert describe_measured_rates([never]) == "fired in 0 of 18 labelled studies without the problem"
    assert describe_measured_rates([]) is None


def test_the_file_is_of_rules_that_exist_and_counts_that_can_be():
    known = {rule.rule_id() for rule in load_rules()}
    with path_of_rule_table(MEASURED_FILE_NAME).open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["rule"] for row in rows} <= known
    assert len({(row["rule"], row["trials"]) for row in rows}) == len(rows) > 40
    for rule in known:
        for m in measured_counts(rule):
            assert m.trials in [words for _, words in STUDY_SIZE_GROUPS]
            assert 0 <= m.detected <= m.positives
            assert 0 <= m.false_alarms <= m.negatives
            assert 0 <= m.not_assessed <= m.positives + m.negatives


def test_a_rules_page_shows_them():
    rule = next(r for r in load_rules() if r.rule_id() == "space-boundary")
    rows = measured_counts("space-boundary")
    page = rule_page(type(rule))
    assert len(rows) > 1
    for m in rows:
        assert f"| {m.trials} | " in page


def test_rates_of_few_studies_are_not_stated():
    few = MeasuredCounts("seeds", "1", positives=1, detected=1, negatives=12, false_alarms=0, not_assessed=0)
    assert describe_measured_rates([few]) == "fired in 0 of 12 labelled studies without the problem"


@pytest.fixture
def empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measured, registry):
        monkeypatch.setattr(module, "path_of_rule_table", lambda file: tmp_path / file)


@pytest.mark.usefixtures("empty_table")
def test_a_script_replaces_its_own_rows_only() -> None:
    assert trained_table() == ()
    other = TrainedCounts("loss-scale", "b.py", 10, 9, 20, 0)
    replace_script_rows("a.py", [TrainedCounts("loss-scale", "a.py", 1, 1, 1, 1), TrainedCounts("adopt", "a.py", 2, 1, 3, 0)])
    replace_script_rows("b.py", [other])
    replace_script_rows("a.py", [new := TrainedCounts("loss-scale", "a.py", 4, 3, 5, 2)])
    assert trained_counts("loss-scale") == (new, other)
    assert trained_counts("adopt") == ()


@pytest.mark.usefixtures("empty_table")
def test_pages_state_what_a_rule_rests_on_and_its_rates() -> None:
    replace_script_rows("lm_rules.py", [TrainedCounts("loss-scale", "lm_rules.py", 21, 20, 30, 1)])
    rules = {rule.rule_id(): rule for rule in load_rules()}
    page = rule_page(type(rules["loss-scale"]))
    assert "The finding rests on how the algorithm works." in page
    assert "it fired in 20 of 21 studies with the cause and in 1 of 30 without it." in page
    lines = beyond_playbook_table(rules.values()).splitlines()
    assert any("`loss-scale` | mechanism |" in line and "20 of 21 | 1 of 30 | `lm_rules.py`" in line for line in lines)
    assert any("`forgetting` | test | literature |" in line and "| – | – | – |" in line for line in lines)
    assert not any("`adopt`" in line for line in lines)
