"""The isolation plot."""

from __future__ import annotations

import pytest

from advisor.report import Report
from advisor.report.figures.isolation import isolation_plot_figure
from tests.advisor.report.figures.reading import drawn, paths, points, scales


def test_isolation_dots_are_the_best_of_their_slice(report: Report) -> None:
    for isolation in report.figures.isolations:
        figure = isolation_plot_figure(report, isolation)
        _, y = scales(figure)
        shown = [report.figures.trials[t] for t in drawn(figure, "lead")]
        assert [r.id for r in shown] == [s.best for s in isolation.slices if s.best is not None]
        (dots,) = paths(figure, "lead")
        for row, (_, at) in zip(shown, points(dots), strict=True):
            assert row.best is not None
            assert at == pytest.approx(y(row.best), abs=0.51)


def test_every_visible_trial_is_drawn_once(report: Report) -> None:
    for isolation in report.figures.isolations:
        figure = isolation_plot_figure(report, isolation)
        _, y = scales(figure)
        visible = [r for r in report.figures.trials if r.feasible and r.best is not None and r.best in y]
        shown = [point for cls in ("all", "lead") for path in paths(figure, cls) for point in points(path)]
        assert len(shown) == sum(isolation.parameter in r.params for r in visible)
        keys = {key.label for key in figure.legend}
        assert ("5 to 95 % by chance" in keys) == bool(paths(figure, "box")) == (isolation.draw_count > 1)
