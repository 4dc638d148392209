"""The pictures: well-formed, inside their frame, and true to the data."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.model.evidence import AxisEvidence, CurveEvidence, HistogramEvidence, Line, Mark
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.report import Report
from advisor.report.figures import Figure
from advisor.report.figures.all_plots import groups
from advisor.report.figures.axis import MOST_DOTS, axis_figure
from advisor.report.figures.curves import curve_figures, curve_path
from advisor.report.figures.histogram import best_step_figure, histogram_figure
from advisor.report.figures.scale import Scale, curve_limits, objective_limits, tick_label
from advisor.report.figures.svg import WIDTH, indices
from tests.advisor.report.studies import make_report, make_study


def root(figure: Figure) -> ET.Element:
    return ET.fromstring(str(figure.svg))


def paths(figure: Figure, cls: str) -> list[ET.Element]:
    """The paths with a class, their own or their group's."""
    groups = [g for g in root(figure).iter("g") if cls in (g.get("class") or "").split()]
    own = [e for e in root(figure).iter("path") if cls in (e.get("class") or "").split()]
    return own + [e for g in groups for e in g.iter("path")]


def points(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.get("d") or "")]


def trials(path: ET.Element) -> Iterator[int]:
    for run in (path.get("data-t") or "").split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def drawn(figure: Figure, cls: str) -> Iterator[int]:
    for element in (e for e in root(figure).iter() if cls in (e.get("class") or "").split()):
        yield from trials(element)


def values(scale: str) -> Scale:
    kind, low, high, start, end = scale.split(" ")
    return Scale(float(low), float(high), float(start), float(end), kind == "log")


# --- scales ---------------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_linear_ticks_are_few_round_and_inside(low: float, span: float, most: int) -> None:
    if low + span <= low or span < abs(low) * 1e-9:
        return
    ticks = Scale(low, low + span, 0, 500).ticks(most)
    assert len(ticks) <= most + 2
    assert all(low - span * 1e-6 <= v <= low + span * (1 + 1e-6) for v, _ in ticks)


@settings(deadline=None)
@given(st.floats(1e-12, 1e6), st.floats(1.5, 1e12))
def test_log_ticks_are_inside_and_labelled_apart(low: float, ratio: float) -> None:
    ticks = Scale(low, low * ratio, 0, 500, log=True).ticks()
    assert 1 <= len(ticks) <= 9
    assert all(low * 0.999 <= v <= low * ratio * 1.001 for v, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("value", "label"),
    [(1e-4, "1e-4"), (0.003, "0.003"), (20, "20"), (1000, "1,000"), (1e6, "1e6"), (0, "0"), (-2, "-2")],
)
def test_tick_labels(value: float, label: str) -> None:
    assert tick_label(value) == label


def test_one_wild_value_does_not_flatten_the_rest() -> None:
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.2, 0.6, 100)
    limits = objective_limits(np.append(errors, [1e12, np.nan, np.inf]), minimize=True)
    assert limits.low < errors.min()
    assert errors.max() <= limits.high < 1
    accuracies = objective_limits(np.append(1 - errors, -1e6), minimize=False)
    assert accuracies.low > -1
    assert accuracies.high > (1 - errors).max()


def test_a_diverged_curve_does_not_flatten_the_rest() -> None:
    good = [np.linspace(2.3, 0.1, 50), np.linspace(2.4, 0.2, 50)]
    limits = curve_limits(good, [*good, np.geomspace(2.3, 1e30, 50)])
    assert 2.4 <= limits.high < 5
    alone = curve_limits([], [np.append(np.linspace(2.3, 4.0, 50), 1e30)])
    assert alone.high < 1e3


@pytest.mark.parametrize("values", [[1.0], [1.2, 1.1], [1.0, 5.0], [0.1, 9.0], [-1.0, 2.0, 3.0]])
def test_curves_of_few_values_are_shown_whole(values: list[float]) -> None:
    limits = curve_limits([np.array(values)])
    assert limits.low < min(values) <= max(values) < limits.high


def test_a_spike_of_a_good_curve_is_shown() -> None:
    norms = np.ones(1000)
    norms[500] = 60.0
    assert curve_limits([norms * np.linspace(0.9, 1.1, 1000)]).high > 60


# --- axis plots -----------------------------------------------------------------------------------------------------------------


def test_dots_stand_where_the_trials_are(report: Report) -> None:
    figure = axis_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    x, y = values(root(figure).get("data-x") or ""), values(root(figure).get("data-y") or "")
    (path,) = paths(figure, "pts")[:1]
    for index, (px, py) in zip(trials(path), points(path), strict=True):
        row = report.figures.trials[index]
        assert px == pytest.approx(x(float(row.params["learning_rate"])), abs=0.51)
        assert py == pytest.approx(y(row.best or 0), abs=0.51)


def test_failed_trials_are_crosses_and_only_they(report: Report) -> None:
    figure = axis_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    failed = {i for i, t in enumerate(report.figures.trials) if not t.feasible}
    assert failed
    assert set(drawn(figure, "bad")) == failed
    assert set(drawn(figure, "pts")) == set(range(200))
    assert "failed" in {k.label for k in figure.legend}


def test_the_declared_range_is_drawn_and_the_next_over_it(report: Report) -> None:
    figure = axis_figure(
        report, AxisEvidence(parameter="weight_decay", caption="c", next_low=1e-8, next_high=0.01), own=True
    )
    scale = values(root(figure).get("data-x") or "")
    assert scale.low < 1e-8
    bounds = sorted(points(p)[0][0] for p in paths(figure, "bound"))
    assert bounds == pytest.approx([scale(1e-6), scale(0.1)], abs=0.06)
    (band,) = [e for e in root(figure).iter("rect") if e.get("class") == "next"]
    assert float(band.get("x") or 0) == pytest.approx(scale(1e-8), abs=0.06)
    assert float(band.get("x") or 0) + float(band.get("width") or 0) == pytest.approx(scale(0.01), abs=0.12)


def test_everything_is_inside_the_picture(report: Report) -> None:
    for figure in (f for g in groups(report) for f in g.figures):
        height = float((root(figure).get("viewBox") or "").split()[3])
        for element in root(figure).iter("path"):
            for x, y in points(element):
                assert -1 <= x <= WIDTH + 1
                assert -1 <= y <= height + 1


def test_every_picture_says_what_it_shows_and_has_no_inline_style(report: Report) -> None:
    for figure in (f for g in groups(report) for f in g.figures):
        svg = root(figure)
        assert svg.get("role") == "img"
        title = svg.find("title")
        assert title is not None
        assert title.text
        assert figure.caption
        assert " style=" not in str(figure.svg)


def test_plots_of_a_hyperparameter_share_what_is_the_same_in_them(report: Report) -> None:
    named = tuple(report.figures.best_trials)
    own = axis_figure(report, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    other = axis_figure(report, AxisEvidence(parameter="learning_rate", caption="c", trials=named))
    ids = {g.get("id") for g in root(own).iter("g")}
    assert {(u.get("href") or "").lstrip("#") for u in root(other).iter("use")} == ids == {"axis-0-axes", "axis-0-dots"}
    assert [root(f).get("data-x") for f in (own, other)] == [root(own).get("data-x")] * 2
    assert [root(f).get("data-y") for f in (own, other)] == [root(own).get("data-y")] * 2
    assert {report.figures.trials[i].id for i in drawn(other, "hot")} == set(named)
    assert len(str(other.svg)) < len(str(own.svg)) / 3


def test_a_rough_curve_keeps_its_peaks() -> None:
    rng = np.random.default_rng(0)
    levels = rng.normal(0, 10, 4000)
    levels[[700, 2900]] = 49, -49
    x, y = Scale(0, 3999, 0, 500), Scale(-50, 50, 250, 0)
    path = curve_path(range(4000), levels.tolist(), x, y)
    assert len(path) < 2500
    at, heights = 0.0, []
    for command, rest in re.findall(r"([MlhvL])([^MlhvL]*)", path):
        n = [float(v) for v in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        at = n[1] if command == "M" else at + (n[-1] if command in "lv" else 0)
        heights.append(at)
    assert min(heights) == pytest.approx(y(49), abs=0.6)
    assert max(heights) == pytest.approx(y(-49), abs=0.6)


def test_thousands_of_dots_are_thinned_but_never_the_best_or_the_failed() -> None:
    large = make_report(make_study(5000, dense=False), ())
    figure = axis_figure(large, AxisEvidence(parameter="learning_rate", caption="c"), own=True)
    dots = set(drawn(figure, "pts"))
    failed = {i for i, t in enumerate(large.figures.trials) if not t.feasible}
    best = next(i for i, t in enumerate(large.figures.trials) if large.best and t.id == large.best.trial)
    assert failed | {best} <= dots
    assert len(dots - failed) <= MOST_DOTS
    assert any("dots are drawn" in note for note in figure.notes)


def test_values_that_cannot_stand_on_the_axis_are_counted_not_drawn() -> None:
    spec = StudySpec(
        study="s",
        objective=Objective(metric="loss", direction="minimize"),
        parameters={"lr": Parameter(type="float", low=1e-4, high=1, scale="log")},
    )
    study = make_study(6, spec=spec, dense=False)
    study.trials[2].params["lr"] = 0.0  # type: ignore[index]
    study.trials[3].params["lr"] = "auto"  # type: ignore[index]
    del study.trials[4].params["lr"]  # type: ignore[attr-defined]
    figure = axis_figure(make_report(study, ()), AxisEvidence(parameter="lr", caption="c"), own=True)
    assert set(drawn(figure, "pts")) == {0, 1, 5}
    assert any("3 trials have no value of lr" in note for note in figure.notes)


def test_choices_stand_in_columns_of_their_own(report: Report) -> None:
    figure = axis_figure(report, AxisEvidence(parameter="optimizer", caption="c"), own=True)
    by_choice: dict[object, list[float]] = {}
    for path in paths(figure, "pts"):
        if "bad" not in (path.get("class") or ""):
            for index, (x, _) in zip(trials(path), points(path), strict=True):
                by_choice.setdefault(report.figures.trials[index].params["optimizer"], []).append(x)
    spans = sorted((min(xs), max(xs)) for xs in by_choice.values())
    assert len(spans) == 3
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_a_parameter_that_nobody_knows_draws_an_empty_plot(report: Report) -> None:
    figure = axis_figure(report, AxisEvidence(parameter="no such", caption="c"), own=True)
    assert not list(drawn(figure, "pts"))


# --- curves and histograms ------------------------------------------------------------------------------------------------------


def test_curves_end_where_the_data_ends(report: Report) -> None:
    trial = report.figures.best_trials[0]
    (figure,) = curve_figures(report, CurveEvidence(metrics=("validation/error",), caption="c", trials=(trial,)))
    (path,) = paths(figure, "crv")
    x, y = values(root(figure).get("data-x") or ""), values(root(figure).get("data-y") or "")
    at_x = at_y = 0.0
    for command, rest in re.findall(r"([Mlhv])([^Mlhv]*)", path.get("d") or ""):
        n = [float(v) for v in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        if command == "M":
            at_x, at_y = n
        at_x += n[0] if command in "lh" else 0
        at_y += n[-1] if command in "lv" else 0
    last = next(
        c for s in report.figures.curves if s.metric == "validation/error" for c in s.curves if c.trial == trial
    )
    assert [at_x, at_y] == pytest.approx([x(last.steps[-1]), y(last.values[-1] or 0)], abs=0.11)


def test_what_is_cut_off_is_said() -> None:
    study = make_study(6, dense=False, statuses={0: "diverged", 1: "complete", 2: "complete"})
    made = make_report(study, naming_all(study, "validation/error"))
    figures = [f for g in (made.findings[0].evidence) for f in curve_figures(made, g)]  # type: ignore[arg-type]
    said = " ".join(figures[0].notes)
    assert "Values up to 1e12 are cut off at the top." in said
    assert "Gaps are values that were not finite." in said


def naming_all(study: Study, *metrics: str) -> list[Verdict]:
    evidence = CurveEvidence(metrics=metrics, caption="c", trials=tuple(t.id for t in study.trials))
    finding = Finding(
        rule="r",
        goal="stability",
        severity="note",
        confidence=0.9,
        message="m",
        action="a",
        playbook="p",
        evidence=(evidence,),
    )
    return [Verdict(rule="r", status="fired", findings=(finding,))]


def test_one_quantity_on_two_sets_of_data_shares_a_plot_and_two_quantities_do_not(report: Report) -> None:
    trials = report.figures.best_trials[:1]
    apart = CurveEvidence(metrics=("train/loss", "train/grad_norm"), caption="c", trials=trials)
    assert len(curve_figures(report, apart)) == 2
    study = make_study(3, dense=False, statuses=dict.fromkeys(range(3), "complete"))
    twin = {**study.metrics, "train/error": study.metrics["validation/error"]}
    made = make_report(dataclasses.replace(study, metrics=twin), naming_all(study, "validation/error", "train/error"))
    (figure,) = curve_figures(made, made.findings[0].evidence[0])  # type: ignore[arg-type]
    assert len(paths(figure, "crv")) == 6
    assert len(paths(figure, "d1")) == 3


def test_marks_that_lie_together_are_labelled_once(report: Report) -> None:
    trials = report.figures.best_trials
    marks = tuple(Mark(trial=t, step=5000, label="best level") for t in trials)
    evidence = CurveEvidence(metrics=("validation/error",), caption="c", trials=trials, marks=marks)
    (figure,) = curve_figures(report, evidence)
    assert [t.text or t[0].tail for t in root(figure).iter("text")].count("best level") == 1
    assert sum("spot" in (c.get("class") or "") for c in root(figure).iter("circle")) == 5


def test_bars_add_up_and_marks_are_labelled() -> None:
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
def test_a_histogram_that_cannot_be_drawn_is_left_out(edges: tuple[float, ...], counts: tuple[int, ...]) -> None:
    assert histogram_figure(HistogramEvidence(quantity="q", caption="c", edges=edges, counts=counts)) is None


def test_the_best_step_histogram_counts_both_ends() -> None:
    caption = best_step_figure([0.05, 0.5, 0.8, 0.9, 1.0]).caption
    assert "1 is best in the first 10% and 3 in the last 25%" in caption


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_ranges_of_trials_hold_each_trial_once(chosen: list[int]) -> None:
    path = ET.Element("path", {"data-t": indices(chosen)})
    assert list(trials(path)) == chosen


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=80))
def test_a_straightened_curve_misses_no_point_by_more_than_a_pixel(levels: list[float]) -> None:
    steps = list(range(len(levels)))
    x, y = Scale(0, len(levels) - 1, 0, 500), Scale(-50, 50, 250, 0)
    at, places = (0.0, 0.0), []
    for command, rest in re.findall(r"([MlhvL])([^MlhvL]*)", curve_path(steps, levels, x, y)):
        n = [float(v) for v in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        dx, dy = {"h": (n[0], 0.0), "v": (0.0, n[0])}.get(command, (n[0], n[-1]))
        at = (dx, dy) if command == "M" else (at[0] + dx, at[1] + dy)
        places.append(at)
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
def test_what_stays_off_the_scale_is_no_plateau_at_its_edge(levels: list[float | None], path: str) -> None:
    assert curve_path(range(len(levels)), levels, Scale(0, 5, 0, 500), Scale(0, 5, 250, 0)) == path


def test_a_straight_line_takes_two_points() -> None:
    steps = list(range(1000))
    path = curve_path(steps, [0.1 * s for s in steps], Scale(0, 999, 0, 500), Scale(0, 99.9, 250, 0))
    assert path == "M0 250l500-250"
