"""The pictures of a whole study: what they show is what was computed, and nothing is left out unsaid."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from advisor.report import Report
from advisor.report.figures.all_plots import gaps, groups
from advisor.report.figures.batch import speed_figure, target_figures
from advisor.report.figures.best_of import best_of_figure
from advisor.report.figures.closeup import close_up_figure
from advisor.report.figures.importance import importance_figures
from advisor.report.figures.isolation import isolation_figure
from advisor.report.figures.parallel import MOST_LINES, parallel_figure
from advisor.report.plot_data.plotted import Importance, Importances, Needed, Speed, ToTarget
from tests.advisor.report.figures.test_figures import drawn, paths, points, root, values
from tests.advisor.report.studies import default_spec, make_report, make_study


def test_every_heading_is_there(report: Report) -> None:
    titles = [g.title for g in groups(report)]
    assert titles == [
        "Objective against each hyperparameter",
        "Best trial for each value (isolation plots)",
        "What matters",
        "All trials in parallel coordinates",
        "Training curves of the best trials",
        "Curves just above the best learning rate",
        "Gradient norm",
        "Close-ups of spikes",
        "Best step",
        "More or fewer trials",
    ]
    assert any("Throughput is not drawn" in gap for gap in gaps(report))


def test_every_caption_is_one_result_with_a_number(report: Report) -> None:
    for group in groups(report)[1:]:
        for figure in group.figures:
            assert re.search(r"\d", str(figure.caption)), figure.caption
            assert str(figure.caption).rstrip().endswith(".")


def test_isolation_dots_are_the_best_of_their_slice(report: Report) -> None:
    for isolation in report.figures.isolations:
        figure = isolation_figure(report, isolation)
        y = values(root(figure).get("data-y") or "")
        shown = [report.figures.trials[t] for t in drawn(figure, "pts")]
        assert [r.id for r in shown] == [s.best for s in isolation.slices if s.best is not None]
        (dots,) = paths(figure, "pts")
        for row, (_, at) in zip(shown, points(dots), strict=True):
            assert row.best is not None
            assert at == pytest.approx(y(row.best), abs=0.51)


def test_all_of_200_trials_are_lines_and_the_best_tenth_stands_out(report: Report) -> None:
    figure = parallel_figure(report)
    assert figure is not None
    shown = list(drawn(figure, "pc"))
    ended = [i for i, t in enumerate(report.figures.trials) if t.status not in ("running", "no_data")]
    assert sorted(shown) == ended
    best = sorted(t.best for t in report.figures.trials if t.feasible and t.best is not None)[:18]
    assert {report.figures.trials[i].best for i in drawn(figure, "top")} == set(best)
    assert len(list(drawn(figure, "bad"))) == report.counts.diverged


def test_of_thousands_of_lines_some_are_drawn_and_how_many_is_said() -> None:
    report = make_report(make_study(2000, dense=False), ())
    figure = parallel_figure(report)
    assert figure is not None
    shown = list(drawn(figure, "pc"))
    assert len(shown) <= MOST_LINES
    assert f"{len(shown)} of 2,000 trials are drawn" in figure.notes[0]
    assert report.best is not None
    assert report.best.trial in {report.figures.trials[i].id for i in drawn(figure, "top")}


def test_parallel_coordinates_need_two_hyperparameters() -> None:
    spec = default_spec()
    one = spec.model_copy(update={"parameters": {"learning_rate": spec.parameters["learning_rate"]}})
    assert parallel_figure(make_report(make_study(20, spec=one), ())) is None


def test_best_of_boxes_stand_where_the_quantiles_are(report: Report) -> None:
    found = report.figures.best_of
    assert found is not None
    figure = best_of_figure(report, found)
    y = values(root(figure).get("data-y") or "")
    medians = [at for path in paths(figure, "iso") for _, at in points(path)]
    assert medians == pytest.approx([y(row[2]) for row in found.quantiles if row[2] is not None], abs=0.06)


def test_throughput_and_target_say_which_size_is_best() -> None:
    speeds = [
        Speed(batch_size=s, examples_per_s=v, low=0.9 * v, high=None, trials=()) for s, v in ((32, 1e3), (64, 1.5e3))
    ]
    figure = speed_figure(speeds)
    assert str(figure.caption).startswith(
        "Batch size 64 trains fastest, at 1,500 examples per second: 1.5 times as many"
    )
    race = ToTarget(
        unit="epochs",
        target=0.5,
        repeats=True,
        sizes=(
            Needed(batch_size=32, typical=4.0, seconds=10.0, trials=()),
            Needed(batch_size=64, typical=8.0, seconds=9.0, trials=()),
        ),
    )
    steps, seconds = target_figures(race, "val/loss")
    assert str(steps.caption).startswith(
        "Batch size 32 reaches val/loss 0.5000 with the fewest epochs, 4; batch size 64 takes 2 times"
    )
    assert str(seconds.caption).startswith(
        "Batch size 64 reaches val/loss 0.5000 in the least time, 9 s; batch size 32 takes 1.1"
    )


def test_importance_does_not_boast_where_all_may_be_noise() -> None:
    part = Importance(parameters=("lr",), share=0.9, low=0.5, high=1.0)
    pair = Importance(parameters=("lr", "wd"), share=0.2, low=0.1, high=0.3, p=0.01)
    noisy = importance_figures(Importances(settings=12, p=0.4, each=(part,), pairs=(pair,)))
    assert "may be noise" in noisy[0].caption
    assert str(noisy[1].caption).startswith("No two")
    sure = importance_figures(Importances(settings=12, p=0.01, each=(part,), pairs=(pair,)))
    assert str(sure[0].caption).startswith("lr goes with 90%")
    assert str(sure[1].caption) == "What one does depends on the other for lr and wd."


def test_a_close_up_draws_every_point_and_gaps_stay_gaps(report: Report) -> None:
    (close,) = report.figures.close_ups
    torn = close.model_copy(update={"values": (None, *close.values[1:])})
    for shown, expected in ((close, len(close.steps)), (torn, len(close.steps) - 1)):
        (knots,) = paths(close_up_figure(report, shown), "knots")
        assert len(points(knots)) == expected


def test_the_clip_line_is_drawn_where_the_best_trials_clip() -> None:
    study = make_study(40)
    clipped = [dataclasses.replace(t, facts={"grad_clip_norm": "1.5"}) for t in study.trials]
    report = make_report(dataclasses.replace(study, trials=tuple(clipped)), ())
    histogram = report.figures.grad_norm
    assert histogram is not None
    assert histogram.clip == 1.5
    assert histogram.clipped is not None
    norms = np.concatenate([study.metric(t, "train/grad_norm").values for t in study.ranked()[:5]])
    assert histogram.clipped == pytest.approx(np.mean(norms >= 1.5), abs=0.01)
    (gradients,) = [g for g in groups(report) if g.title == "Gradient norm"]
    assert all("clipped from 1.50" in str(f.svg) for f in gradients.figures)
    assert all("They clip at 1.50, which changes" in f.caption for f in gradients.figures)
