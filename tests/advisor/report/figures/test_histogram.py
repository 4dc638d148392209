"""Histograms and their captions."""

from __future__ import annotations

import math

import pytest

from advisor.model.evidence import HistogramEvidence, Line
from advisor.report.figures.histogram import best_step_histogram, histogram_figure
from tests.advisor.report.figures.reading import paths, root


def test_empty_bins_have_no_bar_and_marks_are_labelled() -> None:
    evidence = HistogramEvidence(
        quantity="q", caption="c", edges=(0, 1, 2, 3), counts=(5, 0, 2), lines=(Line(value=2.5, label="half <b>"),)
    )
    figure = histogram_figure(evidence)
    assert figure is not None
    (bars,) = paths(figure, "count")
    assert (bars.get("d") or "").count("z") == 2
    assert "half <b>" in [t.text for t in root(figure).iter("text")]


@pytest.mark.parametrize(
    ("edges", "counts"), [((), ()), ((0.0,), ()), ((0.0, math.inf), (1,)), ((1.0, 0.0), (1,)), ((0.0, 1.0), (1, 2))]
)
def test_an_invalid_histogram_is_omitted(edges: tuple[float, ...], counts: tuple[int, ...]) -> None:
    assert histogram_figure(HistogramEvidence(quantity="q", caption="c", edges=edges, counts=counts)) is None


def test_the_best_step_histogram_counts_both_ends() -> None:
    caption = best_step_histogram([0.05, 0.5, 0.8, 0.9, 1.0]).caption
    assert "1 is best in the first 10 % and 3 in the last 25 %" in caption
