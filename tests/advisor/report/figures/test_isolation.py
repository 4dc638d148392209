"""The isolation plot."""

from __future__ import annotations

import pytest

from advisor.report import Report
from advisor.report.figures.isolation import isolation_figure
from tests.advisor.report.figures.reading import drawn, paths, points, scales


def test_isolation_dots_are_the_best_of_their_slice(report: Report) -> None:
    for isolation in report.figures.isolations:
        figure = isolation_figure(report, isolation)
        _, y = scales(figure)
        shown = [report.figures.trials[t] for t in drawn(figure, "pts")]
        assert [r.id for r in shown] == [s.best for s in isolation.slices if s.best is not None]
        (dots,) = paths(figure, "pts")
        for row, (_, at) in zip(shown, points(dots), strict=True):
            assert row.best is not None
            assert at == pytest.approx(y(row.best), abs=0.51)
