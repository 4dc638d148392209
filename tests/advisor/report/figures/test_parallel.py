"""Parallel coordinates."""

from __future__ import annotations

import pytest

from advisor.model.words import setting
from advisor.report import Report
from advisor.report.figures.parallel import MAX_TRIAL_LINES, parallel_coordinates_figure
from tests.advisor.report.figures.reading import drawn
from tests.advisor.report.studies import default_spec, make_report, make_study


def test_all_of_200_trials_are_lines_and_the_best_tenth_is_highlighted(report: Report) -> None:
    figure = parallel_coordinates_figure(report)
    assert figure is not None
    shown = list(drawn(figure, "pc"))
    ended = [i for i, t in enumerate(report.figures.trials) if t.status not in ("running", "no_data")]
    assert sorted(shown) == ended
    best = sorted(t.best for t in report.figures.trials if t.feasible and t.best is not None)[:18]
    assert {report.figures.trials[i].best for i in drawn(figure, "top")} == set(best)
    assert len(list(drawn(figure, "bad"))) == report.counts.diverged


def test_thousands_of_lines_are_thinned_and_counted() -> None:
    report = make_report(make_study(2000, dense=False), ())
    figure = parallel_coordinates_figure(report)
    assert figure is not None
    shown = list(drawn(figure, "pc"))
    assert len(shown) <= MAX_TRIAL_LINES
    assert f"{len(shown)} of 2,000 trials are drawn" in figure.notes[0]
    assert report.best is not None
    assert report.best.trial in {report.figures.trials[i].id for i in drawn(figure, "top")}


def test_parallel_coordinates_need_two_hyperparameters() -> None:
    spec = default_spec()
    one = spec.model_copy(update={"parameters": {"learning_rate": spec.parameters["learning_rate"]}})
    assert parallel_coordinates_figure(make_report(make_study(20, spec=one), ())) is None


def test_the_end_of_the_objectives_axis_is_the_best_result(report: Report) -> None:
    figure = parallel_coordinates_figure(report)
    assert figure is not None
    assert report.best is not None
    assert f">{setting(report.best.value, 3)}<" in figure.svg


@pytest.mark.parametrize(
    ("trials", "start"), [(60, "The best 6 trials agree most on learning_rate: "), (30, "The best 3 trials agree on no")]
)
def test_the_caption_names_an_agreement_only_beyond_chance(trials: int, start: str) -> None:
    figure = parallel_coordinates_figure(make_report(make_study(trials, dense=False), ()))
    assert figure is not None
    assert str(figure.caption).startswith(start)
