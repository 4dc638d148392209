"""Throughput and training to a target."""

from __future__ import annotations

from advisor.report.figures.batch import throughput_figure, training_to_target_figures
from advisor.report.plot_data.model import BatchSizeThroughput, ToTarget, TrainingToTarget


def test_captions_name_the_best_batch_size() -> None:
    speeds = [
        BatchSizeThroughput(batch_size=s, examples_per_s=v, low=0.9 * v, high=None, trials=())
        for s, v in ((32, 1e3), (64, 1.5e3))
    ]
    figure = throughput_figure(speeds)
    assert str(figure.caption).startswith(
        "Batch size 64 trains fastest: 1,500 examples per second, 1.5 times as many as batch size 32."
    )
    race = ToTarget(
        unit="epochs",
        target=0.5,
        repeats=True,
        sizes=(
            TrainingToTarget(batch_size=32, typical=4.0, seconds=10.0, trials=()),
            TrainingToTarget(batch_size=64, typical=8.0, seconds=9.0, trials=()),
        ),
    )
    steps, seconds = training_to_target_figures(race, "val/loss")
    assert str(steps.caption).startswith(
        "Batch size 32 reaches val/loss 0.5000 with the fewest epochs, 4; batch size 64 takes 2 times"
    )
    assert str(seconds.caption).startswith(
        "Batch size 64 reaches val/loss 0.5000 in the least time, 9 s; batch size 32 takes 1.1"
    )
