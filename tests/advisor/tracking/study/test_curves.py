import math

import pytest
from small_experiments import points, run, study_of


def test_points_are_sorted_and_the_last_one_of_a_step_counts():
    logged = points((1, 20, 5, 130), (0, 20, 2, 120), (0, 10, 9, 105), (0, 10, 1, 110))
    study = study_of([run(0, lr=1), run(1, lr=2)], val__loss=logged)
    first = study.cost_curve(study.trials[0])
    assert first.steps.tolist() == [10, 20]
    assert first.values.tolist() == [1, 2]
    assert first.times.tolist() == [10, 20]
    assert study.cost_curve(study.trials[1]).values.tolist() == [5]


@pytest.mark.parametrize(("first", "between"), [(0, 0), (1_700_000_000 * 10**9, 10**9), (-(2**63), 1)])
def test_a_metric_without_usable_steps_keeps_the_order_of_logging(first, between):
    """All at one step, or at times in nanoseconds."""
    values = [(0, first + i * between, 3 - i, 110 + 10 * i) for i in range(3)]
    study = study_of([run(0, lr=1)], val__loss=points(*values))
    assert study.cost_curve(study.trials[0]).values.tolist() == [3, 2, 1]
    assert study.cost_curve(study.trials[0]).steps.tolist() == [0, 1, 2]
    assert "without usable steps" in study.warnings[0]


def test_a_curve_that_was_logged_twice_is_said():
    once = [(0, step, 10 - step, 100 + step) for step in range(5)]
    again = [(0, step, 10.5 - step, 200 + step) for step in range(5)]
    twice = points(*once, *again)
    study = study_of([run(0, lr=1)], val__loss=twice, train__loss=points(*once), time_of_calls=twice)
    (warning,) = (w for w in study.warnings if "more than once" in w)
    assert "time" not in warning  # TRL logs each call
    assert "val/loss (5 of 10 values)" in warning
    assert "train/loss" not in warning
    assert study.cost_curve(study.trials[0]).values.tolist() == [10.5, 9.5, 8.5, 7.5, 6.5]


def test_a_value_without_a_step_after_the_end_is_no_point_of_the_curve():
    curves = points(
        (0, 0, 0.1, 1), (0, 5, 0.5, 2), (0, 9, 0.7, 3), (0, 0, 0.7, 4), (1, 5, 0.5, 2), (1, 9, 0.6, 3), (1, 0, 0.6, 4)
    )
    study = study_of([run(0, lr=1), run(1, lr=2)], val_accuracy=curves)
    assert [study.cost_curve(t).steps.tolist() for t in study.trials] == [[0, 5, 9], [5, 9]]
    assert study.costs.tolist() == [-0.7, -0.6]
    assert [d.text for d in study.decisions if d.topic == "steps"] == [
        "2 trials logged val_accuracy once more without a step at the end: a summary, not a point of the curve."
    ]


@pytest.mark.parametrize("times", [(1, 2, 3), (5, 5, 5), (math.nan,) * 3])
def test_a_first_evaluation_stays_in_the_curve(times):
    curves = points(*[(0, s, 1 / (1 + s), t) for s, t in zip((0, 5, 9), times, strict=True)])
    study = study_of([run(0, lr=1)], val_loss=curves)
    assert study.cost_curve(study.trials[0]).steps.tolist() == [0, 5, 9]
