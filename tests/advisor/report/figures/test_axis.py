"""Dots, crosses and ranges of the axis plot."""

from __future__ import annotations

from itertools import pairwise

import pytest

from advisor.model.evidence import AxisEvidence
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.report import Report
from advisor.report.figures.axis import MAX_DRAWN_DOTS, axis_plot_figure
from tests.advisor.report.figures.reading import drawn, paths, points, root, scales, trials
from tests.advisor.report.studies import make_report, make_study


def test_dots_are_at_the_values_of_the_trials(report: Report) -> None:
    figure = axis_plot_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    x, y = scales(figure)
    (path,) = paths(figure, "pts")[:1]
    for index, (px, py) in zip(trials(path), points(path), strict=True):
        row = report.figures.trials[index]
        assert px == pytest.approx(x(float(row.params["learning_rate"])), abs=0.51)
        assert py == pytest.approx(y(row.best or 0), abs=0.51)


def test_failed_trials_are_crosses_and_only_they(report: Report) -> None:
    figure = axis_plot_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    failed = {i for i, t in enumerate(report.figures.trials) if not t.feasible}
    assert failed
    assert set(drawn(figure, "bad")) == failed
    assert set(drawn(figure, "pts")) == set(range(200))
    assert "failed" in {k.label for k in figure.legend}


def test_trials_that_were_cut_short_are_rings(report: Report) -> None:
    best = report.ranked[0][0]
    cut = [i for i, t in enumerate(report.figures.trials) if t.feasible and i != best][:3]
    rows = tuple(
        t.model_copy(update={"status": "pruned", "comparable": False}) if i in cut else t
        for i, t in enumerate(report.figures.trials)
    )
    made = report.model_copy(update={"figures": report.figures.model_copy(update={"trials": rows})})
    figure = axis_plot_figure(made, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    assert set(drawn(figure, "cut")) <= set(cut)
    assert drawn(figure, "cut")
    assert "stopped early: its result at full length is unknown" in {k.label for k in figure.legend}
    whole = axis_plot_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    assert not any("cut short" in k.label for k in whole.legend)


def test_the_declared_range_is_drawn_and_the_next_over_it(report: Report) -> None:
    figure = axis_plot_figure(
        report, AxisEvidence(parameter="weight_decay", caption="c", next_low=1e-8, next_high=0.01), own=True
    )
    scale, _ = scales(figure)
    assert scale.low < 1e-8
    bounds = sorted(points(p)[0][0] for p in paths(figure, "bound"))
    assert bounds == pytest.approx([scale(1e-6), scale(0.1)], abs=0.06)
    (band,) = [e for e in root(figure).iter("rect") if e.get("class") == "next"]
    assert float(band.get("x") or 0) == pytest.approx(scale(1e-8), abs=0.06)
    assert float(band.get("x") or 0) + float(band.get("width") or 0) == pytest.approx(scale(0.01), abs=0.12)


def test_plots_of_a_hyperparameter_share_axes_and_dots(report: Report) -> None:
    named = tuple(report.figures.best_trials)
    own = axis_plot_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    other = axis_plot_figure(report, AxisEvidence(parameter="learning_rate", caption="c", trials=named))
    ids = {g.get("id") for g in root(own).iter("g")}
    assert {(u.get("href") or "").lstrip("#") for u in root(other).iter("use")} == ids == {"axis-0-axes", "axis-0-dots"}
    assert [root(f).get("data-x") for f in (own, other)] == [root(own).get("data-x")] * 2
    assert [root(f).get("data-y") for f in (own, other)] == [root(own).get("data-y")] * 2
    assert {report.figures.trials[i].id for i in drawn(other, "hot")} == set(named)
    assert len(str(other.svg)) < len(str(own.svg)) / 3


def test_thousands_of_dots_are_thinned_but_never_the_best_or_the_failed() -> None:
    large = make_report(make_study(2000, dense=False), ())
    figure = axis_plot_figure(large, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    dots = set(drawn(figure, "pts"))
    failed = {i for i, t in enumerate(large.figures.trials) if not t.feasible}
    best = next(i for i, t in enumerate(large.figures.trials) if large.best and t.id == large.best.trial)
    assert failed | {best} <= dots
    assert len(dots - failed) <= MAX_DRAWN_DOTS
    assert any("dots are drawn" in note for note in figure.notes)


def test_values_that_do_not_fit_on_the_axis_are_counted_not_drawn() -> None:
    spec = StudySpec(
        study="s",
        objective=Objective(metric="loss", direction="minimize"),
        parameters={"lr": Parameter(type="float", low=1e-4, high=1, scale="log")},
    )
    study = make_study(6, spec=spec, dense=False)
    study.trials[2].params["lr"] = 0.0  # type: ignore[index]
    study.trials[3].params["lr"] = "auto"  # type: ignore[index]
    del study.trials[4].params["lr"]  # type: ignore[attr-defined]
    figure = axis_plot_figure(make_report(study, ()), AxisEvidence(parameter="lr", caption="c"), own=True)
    assert set(drawn(figure, "pts")) == {0, 1, 5}
    assert any("3 trials have no value of lr" in note for note in figure.notes)


def test_each_choice_has_a_column(report: Report) -> None:
    figure = axis_plot_figure(report, AxisEvidence(parameter="optimizer", caption="c"), own=True)
    by_choice: dict[object, list[float]] = {}
    for path in paths(figure, "pts"):
        if "bad" not in (path.get("class") or ""):
            for index, (x, _) in zip(trials(path), points(path), strict=True):
                by_choice.setdefault(report.figures.trials[index].params["optimizer"], []).append(x)
    spans = sorted((min(xs), max(xs)) for xs in by_choice.values())
    assert len(spans) == 3
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_an_unknown_parameter_draws_an_empty_plot(report: Report) -> None:
    figure = axis_plot_figure(report, AxisEvidence(parameter="no such", caption="c"), own=True)
    assert not list(drawn(figure, "pts"))
