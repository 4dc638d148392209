"""The record that the guard leaves on a trial."""

import pytest

from advisor.contract.guard_stop import GuardStop, read_guard_stop


def test_a_record_is_read():
    text = '{"state": "doomed", "step": 1200, "reason": "too far behind", "at": 1.5}'
    assert read_guard_stop(text) == GuardStop("doomed", 1200, "too far behind", 1.5)


@pytest.mark.parametrize("stop", [GuardStop("doomed", 5, "why", 1.5, 12.0), GuardStop("not_finite", 5, "", 1.5)])
def test_a_record_reads_back_as_it_was_written(stop):
    assert read_guard_stop(stop.tag_text()) == stop


def test_a_long_reason_is_cut():
    assert len(GuardStop("doomed", 5, "why " * 5000).tag_text()) < 1000


@pytest.mark.parametrize(
    "text",
    [None, "", "null", "[]", "{", '{"state": "doomed"}', '{"state": 1, "step": 2}', '{"state": "doomed", "step": 1e999}'],
)
def test_anything_else_is_no_record(text):
    assert read_guard_stop(text) is None


def test_an_unknown_state_has_a_predicate():
    assert GuardStop("new", 1, "").stop_reason_phrase == "had another reason"
