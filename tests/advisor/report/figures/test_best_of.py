"""The best of n trials."""

from __future__ import annotations

import pytest

from advisor.report import Report
from advisor.report.figures.best_of import best_of_n_figure
from tests.advisor.report.figures.reading import paths, points, scales


def test_boxes_are_at_the_quantiles(report: Report) -> None:
    found = report.figures.best_of
    assert found is not None
    figure = best_of_n_figure(report, found)
    _, y = scales(figure)
    medians = [at for path in paths(figure, "iso") for _, at in points(path)]
    assert medians == pytest.approx([y(row[2]) for row in found.quantiles if row[2] is not None], abs=0.06)
