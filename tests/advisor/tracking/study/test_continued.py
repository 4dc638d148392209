import numpy as np
import pytest
from small_experiments import points, run, statuses, study_of


def _study(parts, settings=lambda i: {}, tags=None):
    """Return the study of runs from (status, learning rate, steps), one after the other; the loss is 1 / step."""
    runs, rows, clock = [], [], 100.0
    for i, (status, lr, steps) in enumerate(parts):
        runs.append(run(i, status, (tags or {}).get(i), started=clock, lr=lr, **settings(i)))
        rows += [(i, s, 1 / s, clock + n) for n, s in enumerate(steps, start=1)]
        clock += len(steps) + 5
    return study_of(runs, val__loss=points(*rows), objective="val/loss")


OTHERS = [("FINISHED", 5, range(1, 21)), ("FINISHED", 6, range(1, 21))]


@pytest.mark.parametrize(
    "parts",
    [
        [("KILLED", range(1, 9)), ("FINISHED", range(9, 21))],  # from a checkpoint
        [("FAILED", range(1, 9)), ("FINISHED", range(7, 21))],  # from a checkpoint before the end
        [("KILLED", range(1, 9)), ("FINISHED", range(1, 21))],  # from the beginning
        [("KILLED", range(1, 9)), ("FINISHED", range(1, 13))],  # the rest, with its own step count
        [("KILLED", range(1, 5)), ("KILLED", range(5, 9)), ("FINISHED", range(8, 21))],  # several interruptions
    ],
)
def test_a_continued_run_is_one_trial(parts):
    study = _study([*((status, 1, steps) for status, steps in parts), *OTHERS])
    last = len(parts) - 1
    assert [t.name for t in study.trials] == [f"r{i}" for i in range(last, last + 3)]
    assert statuses(study) == ["complete"] * 3
    np.testing.assert_array_equal(study.cost_curve(study.trials[0]).steps, range(1, 21))
    assert study.trials[0].started == 100.0
    said = "1 run continues an interrupted one" if last == 1 else "2 runs continue interrupted ones"
    assert study.decisions[0].text.startswith(f"{said} with the same parameters.")


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        (("FINISHED", range(1, 21)), ("FINISHED", range(1, 21)), 1),  # repeats
        (("FAILED", range(1, 9)), ("FINISHED", range(1, 21)), 1),  # a crash, and another attempt
        (("KILLED", range(1, 9)), ("FINISHED", range(9, 21)), 2),  # another setting
    ],
)
def test_other_runs_are_not_joined(first, second, rate):
    study = _study([(first[0], 1, first[1]), (second[0], rate, second[1]), *OTHERS])
    assert len(study.trials) == 4
    assert not [d for d in study.decisions if "continue" in d.text]


def test_large_numbers_that_differ_in_the_last_digit_are_other_settings():
    parts = [("KILLED", 1, range(1, 9)), ("FINISHED", 1, range(1, 21)), *OTHERS]
    assert len(_study(parts, lambda i: {"shard": 123456780 + min(i, 2)}).trials) == 4


def test_repeats_whose_steps_are_times_are_not_joined():
    base = 1_700_000_000
    parts = [("FINISHED", 1 + i // 2, range(base + 20 * i, base + 20 * i + 15)) for i in range(10)]
    assert len(_study(parts).trials) == 10


def test_folds_are_not_joined():
    parts = [("FINISHED" if i else "KILLED", 1 + i // 3, range(1, 21 if i else 9)) for i in range(9)]
    assert len(_study(parts, lambda i: {"fold": i % 3}).trials) == 9


def test_the_end_of_the_interrupted_part_is_not_the_end_of_the_trial():
    parts = [("FAILED", 1, range(1, 9)), ("FINISHED", 1, range(9, 21)), ("FINISHED", 2, range(1, 21))]
    study = _study(parts, tags={0: {"advisor.status": "infeasible", "advisor.error": "SIGTERM"}})
    assert statuses(study) == ["complete", "complete"]
