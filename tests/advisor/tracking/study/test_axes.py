import numpy as np
import pytest

from advisor.model.study import CurveBlock
from advisor.tracking.study import axes


def block(*curves):
    """Of (steps, times) of each trial."""
    steps = np.concatenate([np.asarray(s, dtype=np.int64) for s, _ in curves])
    times = np.concatenate([np.asarray(t, dtype=float) for _, t in curves])
    offsets = np.cumsum([0, *(len(s) for s, _ in curves)])
    return CurveBlock(steps, np.arange(len(steps), dtype=float), times, offsets)


def steps_per_trial(blocks, metric, trial=0):
    return blocks[metric].curve(trial).steps.tolist()


EPOCHS = np.arange(4)
TEN = np.arange(1, 11)


def loss(n):
    """Of steps from 0, one per second."""
    return np.arange(n), np.arange(n) + 1.0


@pytest.mark.parametrize(
    ("losses", "epochs", "aligned"),
    [
        (np.arange(40), EPOCHS, [9, 19, 29, 39]),
        (np.arange(40), EPOCHS + 1, [9, 19, 29, 39]),
        (np.arange(0, 40, 5), EPOCHS, [9, 19, 29, 39]),
        (np.arange(5, 41, 5), EPOCHS, [10, 20, 30, 40]),
        (np.arange(4, 40, 5), EPOCHS, [9, 19, 29, 39]),
    ],
)
def test_epochs_become_the_steps_at_which_they_ended(losses, epochs, aligned):
    first = int(losses[0] == 5)
    blocks = {"loss": block((losses, losses + 1.0 - first)), "val": block((epochs, 10.0 * (EPOCHS + 1) + 0.01))}
    found, warnings = axes.convert_epochs_to_steps(blocks)
    assert steps_per_trial(found, "val") == pytest.approx(aligned, abs=2)
    assert steps_per_trial(found, "loss") == losses.tolist()
    assert len(warnings) == 1
    assert "epoch" in warnings[0]


def test_trials_have_epochs_of_their_own_length():
    evaluated = block((EPOCHS, 10.1 * (EPOCHS + 1)), (EPOCHS, 20.1 * (EPOCHS + 1)))
    found, (warning,) = axes.convert_epochs_to_steps({"loss": block(loss(40), loss(80)), "val": evaluated})
    assert steps_per_trial(found, "val", 0) == [9, 19, 29, 39]
    assert steps_per_trial(found, "val", 1) == [19, 39, 59, 79]
    assert "10 to 20 steps" in warning


@pytest.mark.parametrize("times", [EPOCHS + 1.0, np.full(4, np.nan), np.full(4, 40.0)], ids=["first steps", "unknown", "end"])
def test_what_may_count_steps_is_left_as_it_is(times):
    blocks = {"loss": block(loss(40)), "early": block((EPOCHS, times))}
    found, warnings = axes.convert_epochs_to_steps(blocks)
    assert steps_per_trial(found, "early") == [0, 1, 2, 3]
    assert warnings == []


def test_epochs_are_recognised_by_the_planned_number():
    ends = axes.last_steps({"val": block((EPOCHS, EPOCHS), (EPOCHS[:0], EPOCHS[:0]))})
    assert ends.tolist() == [3, -1]
    assert axes.are_steps_epochs(ends, [{"max_epochs": 4}, {}])
    assert not axes.are_steps_epochs(ends, [{"max_epochs": 9}, {}])
    assert not axes.are_steps_epochs(ends, [{"depth": 4}, {}])


def test_trials_that_end_early_count_epochs_as_well():
    ends = axes.last_steps({"val": block((EPOCHS, EPOCHS), (EPOCHS[:2], EPOCHS[:2]))})
    assert axes.are_steps_epochs(ends, [{"max_epochs": 4}, {"max_epochs": 4}])
    assert not axes.are_steps_epochs(ends, [{"max_epochs": 4}, {"max_epochs": 0.5}])
    assert not axes.are_steps_epochs(ends, [{"max_epochs": 4}, {}])


def test_steps_that_begin_late_are_counted_from_the_start():
    late = {"loss": block(*[(100_000 + 10 * TEN, np.arange(10.0))] * 2)}
    found, start = axes.remove_step_offsets(late, 2)
    assert steps_per_trial(found, "loss", 1) == list(range(10, 101, 10))
    (decision,) = start.decisions()
    assert "begin at 100,000" in decision.text
    assert decision.topic == "steps"


def test_times_as_steps_are_counted_from_the_start_of_each_trial():
    seconds = {"loss": block(*((1_700_000_000 + 5_000 * i + np.arange(10), np.arange(10.0)) for i in range(3)))}
    found, start = axes.remove_step_offsets(seconds, 3)
    assert start.unit == "second"
    assert steps_per_trial(found, "loss", 0) == steps_per_trial(found, "loss", 2) == list(range(1, 11))
    assert axes.remove_step_offsets({"loss": block((10**12 + 7 * np.arange(9), np.arange(9.0)))}, 1)[1].unit == "millisecond"


def test_steps_that_start_at_0_stay_as_they_are():
    millions = {"return": block((np.arange(0, 10**7, 10**5), np.arange(100.0)), (np.arange(5) * 10**5, np.arange(5.0)))}
    one_late = {"loss": block((np.arange(10), np.arange(10.0)), (1000 + np.arange(10), np.arange(10.0)))}
    for blocks in (millions, one_late):
        found, start = axes.remove_step_offsets(blocks, 2)
        assert start.decisions() == ()
        assert steps_per_trial(found, next(iter(blocks)), 1) == next(iter(blocks.values())).curve(1).steps.tolist()


def test_trials_by_epoch_beside_trials_by_step_are_said():
    epochs, steps = (TEN, np.arange(10.0)), (TEN * 390, np.arange(10.0))
    (warning,) = axes.mixed_unit_warnings({"val": block(epochs, epochs, steps), "loss": block(steps, steps, steps)})
    assert "val (2 trials by epoch, 1 by step)" in warning
    assert "loss" not in warning


@pytest.mark.parametrize(
    "other",
    [
        (np.arange(1, 101) * 10, np.arange(100.0)),  # many more points: it may be logged by step and more rarely
        (np.arange(1, 21), np.arange(20.0)),
        (TEN * 2, np.arange(10.0)),
        (np.array([7]), np.array([1.0])),
    ],
)
def test_trials_on_one_axis_raise_no_warning(other):
    assert axes.mixed_unit_warnings({"val": block((TEN, np.arange(10.0)), other)}) == []


@pytest.mark.parametrize(
    ("steps", "length"),
    [
        (np.arange(200), 200),
        (np.arange(201), 200),  # evaluated before the training
        (np.arange(1, 200), 199),
        (np.arange(0, 200, 10), 190),
    ],
)
def test_steps_that_count_from_0_are_one_more_than_the_last_one(steps, length):
    assert axes.curve_length(block((steps, np.arange(len(steps)))).curve(0)) == length
