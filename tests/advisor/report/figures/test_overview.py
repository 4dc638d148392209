"""Figures of the study as a whole."""

from __future__ import annotations

import pytest

from advisor.report import Report
from advisor.report.figures.overview import best_of_n_figure, importance_figures, throughput_figure, training_to_target_figures
from advisor.report.plot_data.model import (
    BatchSizeThroughput,
    BatchSizeTraining,
    ParameterImportance,
    StudyImportances,
    TrainingComparison,
)
from tests.advisor.report.figures.reading import paths, points, scales


def test_boxes_are_at_the_quantiles(report: Report) -> None:
    found = report.figures.best_of_n
    assert found is not None
    figure = best_of_n_figure(report, found)
    _, y = scales(figure)
    medians = [at for path in paths(figure, "iso") for _, at in points(path)]
    assert medians == pytest.approx([y(row[2]) for row in found.quantiles if row[2] is not None], abs=0.06)


def test_variation_that_may_be_noise_is_called_noise() -> None:
    part = ParameterImportance(parameters=("lr",), share=0.9, low=0.5, high=1.0)
    pair = ParameterImportance(parameters=("lr", "wd"), share=0.2, low=0.1, high=0.3, p=0.01)
    noisy = importance_figures(StudyImportances(settings=12, p=0.4, of_parameters=(part,), of_pairs=(pair,)))
    assert "may be noise" in noisy[0].caption
    assert str(noisy[1].caption).startswith("No two hyperparameters")
    other = ParameterImportance(parameters=("wd",), share=0.1, low=0.0, high=0.2)
    sure = importance_figures(StudyImportances(settings=12, p=0.01, of_parameters=(part, other), of_pairs=(pair,)))
    assert str(sure[0].caption).startswith("lr with its interactions explains 90 %")
    alone = importance_figures(StudyImportances(settings=12, p=0.01, of_parameters=(part,), of_pairs=()))
    assert str(alone[0].caption).startswith("lr explains 90 %")
    assert str(sure[1].caption) == "The hyperparameters in these pairs may depend on each other: lr and wd."


def test_captions_name_the_best_batch_size() -> None:
    speeds = [BatchSizeThroughput(batch_size=s, examples_per_s=v, low=0.9 * v, high=None) for s, v in ((32, 1e3), (64, 1.5e3))]
    figure = throughput_figure(speeds)
    assert str(figure.caption).startswith(
        "Batch size 64 trains fastest: 1,500 examples per second, 1.5 times as many as batch size 32."
    )
    race = TrainingComparison(
        unit="epochs",
        target=0.5,
        repeats=True,
        sizes=(
            BatchSizeTraining(batch_size=32, amount=4.0, seconds=10.0),
            BatchSizeTraining(batch_size=64, amount=8.0, seconds=9.0),
        ),
    )
    steps, seconds = training_to_target_figures(race, "val/loss")
    assert str(steps.caption).startswith(
        "Batch size 32 reaches val/loss 0.5000 with the fewest epochs, 4; batch size 64 takes 2 times"
    )
    assert str(seconds.caption).startswith(
        "Batch size 64 reaches val/loss 0.5000 in the least time, 9 s; batch size 32 takes 1.1"
    )
