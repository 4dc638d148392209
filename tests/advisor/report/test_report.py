"""The report for Python users."""

from __future__ import annotations

from advisor.report import Report


def test_a_notebook_displays_it_in_a_frame(report: Report) -> None:
    shown = report._repr_html_()
    assert shown.startswith("<iframe")
    assert "<script" not in shown
