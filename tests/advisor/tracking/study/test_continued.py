import numpy as np
import pytest
from small_experiments import experiment, points, run

from advisor.tracking.runs import Run
from advisor.tracking.study.assemble import assemble


def _run(i, status, started, **params):
    made = run(i, status, **params)
    return Run(made.id, made.name, made.status, made.params, made.tags, started=started)


def _study(parts):
    """Return the study of runs from (status, learning rate, steps), one after the other; the loss is 1 / step."""
    runs, rows, clock = [], [], 100.0
    for i, (status, lr, steps) in enumerate(parts):
        runs.append(_run(i, status, clock, lr=lr))
        rows += [(i, s, 1 / s, clock + n) for n, s in enumerate(steps, start=1)]
        clock += len(steps) + 5
    return assemble(experiment(runs, val__loss=points(*rows)), objective="val/loss")


OTHERS = [("FINISHED", 5, range(1, 21)), ("FINISHED", 6, range(1, 21))]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("KILLED", range(1, 9)), ("FINISHED", range(9, 21))),  # from a checkpoint
        (("FAILED", range(1, 9)), ("FINISHED", range(7, 21))),  # from a checkpoint before the end
        (("KILLED", range(1, 9)), ("FINISHED", range(1, 21))),  # from the beginning
        (("KILLED", range(1, 9)), ("FINISHED", range(1, 13))),  # the rest, with its own step count
    ],
)
def test_a_continued_run_is_one_trial(first, second):
    study = _study([(first[0], 1, first[1]), (second[0], 1, second[1]), *OTHERS])
    assert [t.name for t in study.trials] == ["r1", "r2", "r3"]
    assert [t.status for t in study.trials] == ["complete"] * 3
    np.testing.assert_array_equal(study.cost_curve(study.trials[0]).steps, range(1, 21))
    assert study.trials[0].started == 100.0
    assert study.decisions[0].text.startswith("1 run continues an interrupted one with the same parameters.")


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


def test_several_interruptions():
    parts = [("KILLED", 1, range(1, 5)), ("KILLED", 1, range(5, 9)), ("FINISHED", 1, range(8, 21))]
    study = _study([*parts, *OTHERS])
    assert [t.name for t in study.trials] == ["r2", "r3", "r4"]
    np.testing.assert_array_equal(study.cost_curve(study.trials[0]).steps, range(1, 21))
