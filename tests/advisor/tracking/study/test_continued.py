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


def test_repeats_whose_steps_are_times_are_not_joined():
    base = 1_700_000_000
    parts = [("FINISHED", 1 + i // 2, range(base + 20 * i, base + 20 * i + 15)) for i in range(10)]
    assert len(_study(parts).trials) == 10


def test_folds_are_not_joined():
    runs = [_run(i, "KILLED" if i == 0 else "FINISHED", 100.0 + 30 * i, lr=1 + i // 3, fold=i % 3) for i in range(9)]
    steps = [range(1, 9) if i == 0 else range(1, 21) for i in range(9)]
    rows = [(i, s, 1 / s, 100.0 + 30 * i + s) for i in range(9) for s in steps[i]]
    assert len(assemble(experiment(runs, val__loss=points(*rows)), objective="val/loss").trials) == 9


def test_the_end_of_the_interrupted_part_is_not_the_end_of_the_trial():
    study_runs = [_run(0, "FAILED", 100.0, lr=1), _run(1, "FINISHED", 130.0, lr=1), _run(2, "FINISHED", 160.0, lr=2)]
    tags = {"advisor.status": "infeasible", "advisor.error": "SIGTERM"}
    study_runs[0] = Run(study_runs[0].id, "r0", "FAILED", {"lr": "1"}, tags, started=100.0)
    rows = [(0, s, 1 / s, 100.0 + s) for s in range(1, 9)] + [(1, s, 1 / s, 130.0 + s) for s in range(9, 21)]
    rows += [(2, s, 1 / s, 160.0 + s) for s in range(1, 21)]
    study = assemble(experiment(study_runs, val__loss=points(*rows)), objective="val/loss")
    assert [t.status for t in study.trials] == ["complete", "complete"]
