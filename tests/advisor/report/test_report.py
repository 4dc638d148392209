"""The report for Python users."""

from __future__ import annotations

from advisor.report import Report


def test_it_shows_itself_in_a_notebook(report: Report) -> None:
    shown = report._repr_html_()
    assert shown.startswith("<iframe")
    assert "<script" not in shown
