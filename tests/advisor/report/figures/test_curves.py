"""Curves: true to the data, few characters, peaks kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from advisor.model.evidence import CurveEvidence, Mark
from advisor.model.finding import Verdict
from advisor.model.study import Study
from advisor.report import Report
from advisor.report.figures.curves import curve_close_up_figure, curve_path_data, training_curve_figures
from advisor.report.plot_data.scale import Scale
from tests.advisor.report.figures.reading import paths, points, root, scales, vertices
from tests.advisor.report.studies import fired, make_report, make_study


def test_a_rough_curve_keeps_its_peaks() -> None:
    rng = np.random.default_rng(0)
    levels = rng.normal(0, 10, 4000)
    levels[[700, 2900]] = 49, -49
    x, y = Scale(0, 3999, 0, 500), Scale(-50, 50, 250, 0)
    path = curve_path_data(range(4000), levels.tolist(), x, y)
    assert len(path) < 2500
    heights = [at for _, at in vertices(path)]
    assert min(heights) == pytest.approx(y(49), abs=0.6)
    assert max(heights) == pytest.approx(y(-49), abs=0.6)


def test_curves_end_where_the_data_ends(report: Report) -> None:
    trial = report.figures.best_trials[0]
    (figure,) = training_curve_figures(report, CurveEvidence(metrics=("validation/error",), caption="c", trials=(trial,)))
    (path,) = paths(figure, "crv")
    x, y = scales(figure)
    last = next(c for s in report.figures.curves if s.metric == "validation/error" for c in s.curves if c.trial == trial)
    assert list(vertices(path.get("d") or "")[-1]) == pytest.approx([x(last.steps[-1]), y(last.values[-1] or 0)], abs=0.11)


def test_shares_have_an_axis_from_0_to_1(report: Report) -> None:
    trials = report.figures.best_trials
    evidence = CurveEvidence(metrics=("validation/error",), caption="c", trials=trials, shares=True)
    (figure,) = training_curve_figures(report, evidence)
    _, y = scales(figure)
    assert y(1) < y(0)
    assert figure.svg != training_curve_figures(report, evidence.model_copy(update={"shares": False}))[0].svg


def naming_all(study: Study, *metrics: str) -> list[Verdict]:
    evidence = CurveEvidence(metrics=metrics, caption="c", trials=tuple(t.id for t in study.trials))
    return [fired("note", "stability", evidence=(evidence,))]


def test_clipped_values_are_mentioned() -> None:
    study = make_study(6, dense=False, statuses={0: "diverged", 1: "complete", 2: "complete"})
    made = make_report(study, naming_all(study, "validation/error"))
    figures = [f for g in (made.findings[0].evidence) for f in training_curve_figures(made, g)]  # type: ignore[arg-type]
    notes = " ".join(map(str, figures[0].notes))
    assert "Values up to 1e12 are clipped at the top." in notes
    assert "Gaps in a curve are values that are not finite." in notes


def test_one_quantity_on_two_data_sets_shares_a_plot_and_two_quantities_do_not(report: Report) -> None:
    trials = report.figures.best_trials[:1]
    apart = CurveEvidence(metrics=("train/loss", "train/grad_norm"), caption="c", trials=trials)
    assert len(training_curve_figures(report, apart)) == 2
    study = make_study(3, dense=False, statuses=dict.fromkeys(range(3), "complete"))
    twin = {**study.metrics, "train/error": study.metrics["validation/error"]}
    made = make_report(dataclasses.replace(study, metrics=twin), naming_all(study, "validation/error", "train/error"))
    (figure,) = training_curve_figures(made, made.findings[0].evidence[0])  # type: ignore[arg-type]
    assert len(paths(figure, "crv")) == 6
    assert len(paths(figure, "d1")) == 3


def test_equal_labels_are_written_once(report: Report) -> None:
    trials = report.figures.best_trials
    marks = tuple(Mark(trial=t, step=5000, label="best level") for t in trials)
    evidence = CurveEvidence(metrics=("validation/error",), caption="c", trials=trials, marks=marks)
    (figure,) = training_curve_figures(report, evidence)
    assert [t.text or t[0].tail for t in root(figure).iter("text")].count("best level") == 1
    assert sum("spot" in (c.get("class") or "") for c in root(figure).iter("circle")) == 5


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=80))
def test_a_straightened_curve_stays_within_a_pixel_of_every_point(levels: list[float]) -> None:
    steps = list(range(len(levels)))
    x, y = Scale(0, len(levels) - 1, 0, 500), Scale(-50, 50, 250, 0)
    places = vertices(curve_path_data(steps, levels, x, y))
    line = np.array(places if len(places) > 1 else places * 2)
    ends, moves = line[:-1], np.diff(line, axis=0)
    for step, level in zip(steps, levels, strict=True):
        point = np.array([x(step), y(level)])
        along = ((point - ends) * moves).sum(1) / np.maximum((moves**2).sum(1), 1e-12)
        feet = ends + np.clip(along, 0, 1)[:, None] * moves
        assert np.hypot(*(feet - point).T).min() < 1


@pytest.mark.parametrize(
    ("levels", "path"),
    [
        ([9, 9, 9, 1, 1], "M200 0l100 200h100"),
        ([1, 9, 9, 1], "M0 200l100-200M200 0l100 200"),
        ([1, 9, 1], "M0 200l100-200l100 200"),
        ([9, 9, -9, -9], "M100 0l100 250M300 250h0"),
        ([1, None, 1], "M0 200h0M200 200h0"),
    ],
)
def test_values_outside_the_scale_are_not_drawn_as_a_plateau(levels: list[float | None], path: str) -> None:
    assert curve_path_data(range(len(levels)), levels, Scale(0, 5, 0, 500), Scale(0, 5, 250, 0)) == path


def test_a_straight_line_has_two_points() -> None:
    steps = list(range(1000))
    path = curve_path_data(steps, [0.1 * s for s in steps], Scale(0, 999, 0, 500), Scale(0, 99.9, 250, 0))
    assert path == "M0 250l500-250"


def test_a_close_up_draws_every_point_and_keeps_gaps(report: Report) -> None:
    (close,) = report.figures.close_ups
    torn = close.model_copy(update={"values": (None, *close.values[1:])})
    for shown, expected in ((close, len(close.steps)), (torn, len(close.steps) - 1)):
        (knots,) = paths(curve_close_up_figure(report, shown), "knots")
        assert len(points(knots)) == expected
