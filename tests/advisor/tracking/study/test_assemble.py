import math
import time

import pytest
from small_experiments import declared, experiment, points, run, statuses, study_of

from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter
from advisor.tracking.study.assemble import assemble


def test_costs_are_lower_is_better_and_best_over_the_run():
    accuracy = points((0, 1, 0.7, 1), (0, 2, 0.6, 2), (1, 1, 0.8, 1), (1, 2, math.nan, 2))
    study = study_of([run(0, lr=1), run(1, lr=2)], val__accuracy=accuracy)
    assert study.costs.tolist() == [-0.7, -0.8]
    assert study.ranked() == [study.trials[0]]
    assert study.objective_value(-0.7) == 0.7
    assert study.inferred["direction"]


RANGE = Parameter(low=1, high=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "nope"}, "no run logged the objective 'nope'; metrics that were logged: odd, val/loss"),
        ({"objective": "odd"}, "pass --direction"),
        ({"spec": declared("odd"), "objective": "val/loss"}, "drop one of them"),
        ({"spec": declared(width=RANGE)}, "searches 'width', but no run logged"),
        ({"spec": declared(opt=RANGE)}, "a range, but the runs logged words"),
    ],
)
def test_contradictions_are_one_clear_line(arguments, message):
    with pytest.raises(AdvisorError, match=message):
        study_of([run(0, opt="sgd")], val__loss=points((0, 1, 1, 1)), odd=points((0, 1, 1, 1)), **arguments)


@pytest.mark.parametrize(
    ("runs", "metrics", "message"),
    [
        ([], {}, "has no runs"),
        ([run(0, lr=1)], {}, "no run of experiment 'e' logged a metric"),
        ([run(0, lr=1)], {"objective": "val/loss"}, "no run of experiment 'e' logged a metric"),
        ([run(0)], {"epoch": points((0, 1, 1, 1))}, "cannot tell which metric"),
    ],
)
def test_nothing_to_analyse(runs, metrics, message):
    with pytest.raises(AdvisorError, match=message):
        study_of(runs, **metrics)


def test_running_trials_are_no_study_yet():
    data = experiment([run(0, "RUNNING", lr=1)], val__loss=points((0, 1, 1, time.time())))
    with pytest.raises(AdvisorError, match=r"no trial of experiment 'e' has ended yet \(1 are running\)"):
        assemble(data)
    assert statuses(assemble(data, unfinished=True)) == ["running"]
