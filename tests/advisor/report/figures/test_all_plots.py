"""All plots together: headings, captions, frames, and reasons for missing plots."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from advisor.report import Report
from advisor.report.figures.all_plots import missing_plot_sentences, plot_groups
from advisor.report.figures.svg import FIGURE_WIDTH
from tests.advisor.report.figures.reading import points, root
from tests.advisor.report.studies import make_report, make_study


def test_every_heading_is_there(report: Report) -> None:
    titles = [g.title for g in plot_groups(report)]
    assert titles == [
        "Objective against each hyperparameter",
        "Best trial for each value (isolation plots)",
        "Importance",
        "All trials in parallel coordinates",
        "Training curves of the best trials",
        "Curves just above the best learning rate",
        "Gradient norm",
        "Close-ups of spikes",
        "Best step",
        "More or fewer trials",
    ]
    assert any("Throughput is not shown" in reason for reason in missing_plot_sentences(report))


def test_every_caption_is_one_result_with_a_number(report: Report) -> None:
    for group in plot_groups(report)[1:]:
        for figure in group.figures:
            assert re.search(r"\d", str(figure.caption)), figure.caption
            assert str(figure.caption).rstrip().endswith(".")


def test_everything_is_inside_the_figure(report: Report) -> None:
    for figure in (f for g in plot_groups(report) for f in g.figures):
        height = float((root(figure).get("viewBox") or "").split()[3])
        for element in root(figure).iter("path"):
            for x, y in points(element):
                assert -1 <= x <= FIGURE_WIDTH + 1
                assert -1 <= y <= height + 1


def test_every_figure_has_a_title_and_a_caption_but_no_inline_style(report: Report) -> None:
    for figure in (f for g in plot_groups(report) for f in g.figures):
        svg = root(figure)
        assert svg.get("role") == "img"
        title = svg.find("title")
        assert title is not None
        assert title.text
        assert figure.caption
        assert " style=" not in str(figure.svg)


def test_the_clipping_threshold_of_the_best_trials_is_marked() -> None:
    study = make_study(40)
    clipped = [dataclasses.replace(t, facts={"grad_clip_norm": "1.5"}) for t in study.trials]
    report = make_report(dataclasses.replace(study, trials=tuple(clipped)), ())
    histogram = report.figures.gradient_norms
    assert histogram is not None
    assert histogram.clipping_threshold == 1.5
    assert histogram.clipped_share is not None
    norms = np.concatenate([study.metric(t, "train/grad_norm").values for t in study.ranked()[:5]])
    assert histogram.clipped_share == pytest.approx(np.mean(norms >= 1.5), abs=0.01)
    (gradients,) = [g for g in plot_groups(report) if g.title == "Gradient norm"]
    assert all("clipped above 1.50" in str(f.svg) for f in gradients.figures)
    assert all("The trials clip at a norm of 1.50, which changes" in f.caption for f in gradients.figures)
