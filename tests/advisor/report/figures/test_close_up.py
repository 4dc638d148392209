"""Close-ups of curves."""

from __future__ import annotations

from advisor.report import Report
from advisor.report.figures.close_up import curve_close_up_figure
from tests.advisor.report.figures.reading import paths, points


def test_a_close_up_draws_every_point_and_keeps_gaps(report: Report) -> None:
    (close,) = report.figures.close_ups
    torn = close.model_copy(update={"values": (None, *close.values[1:])})
    for shown, expected in ((close, len(close.steps)), (torn, len(close.steps) - 1)):
        (knots,) = paths(curve_close_up_figure(report, shown), "knots")
        assert len(points(knots)) == expected
