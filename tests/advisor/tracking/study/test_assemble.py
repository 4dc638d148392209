import math

import pytest
from small_experiments import experiment, points, run

from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking.runs import Experiment
from advisor.tracking.study.assemble import assemble


def test_costs_are_lower_is_better_and_best_over_the_run():
    study = assemble(
        experiment(
            [run(0, lr=1), run(1, lr=2)],
            val__accuracy=points((0, 1, 0.7, 1), (0, 2, 0.6, 2), (1, 1, 0.8, 1), (1, 2, math.nan, 2)),
        )
    )
    assert study.costs.tolist() == [-0.7, -0.8]
    assert study.ranked() == [study.trials[0]]
    assert study.objective_value(-0.7) == 0.7
    assert study.inferred["direction"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "nope"}, "no run logged the objective 'nope'; metrics that were logged: odd, val/loss"),
        ({"objective": "odd"}, "pass --direction"),
        (
            {"spec": StudySpec(study="s", objective=Objective(metric="odd", direction="minimize")), "objective": "val/loss"},
            "drop one of them",
        ),
        (
            {
                "spec": StudySpec(
                    study="s",
                    objective=Objective(metric="val/loss", direction="minimize"),
                    parameters={"width": Parameter(low=1, high=2)},
                )
            },
            "searches 'width', but no run logged",
        ),
        (
            {
                "spec": StudySpec(
                    study="s",
                    objective=Objective(metric="val/loss", direction="minimize"),
                    parameters={"opt": Parameter(low=1, high=2)},
                )
            },
            "a range, but the runs logged words",
        ),
    ],
)
def test_contradictions_are_one_clear_line(arguments, message):
    data = experiment([run(0, opt="sgd")], val__loss=points((0, 1, 1, 1)), odd=points((0, 1, 1, 1)))
    with pytest.raises(AdvisorError, match=message):
        assemble(data, **arguments)


def test_nothing_to_analyse():
    with pytest.raises(AdvisorError, match="has no runs"):
        assemble(Experiment("e", (), {}))
    for arguments in ({}, {"objective": "val/loss"}):
        with pytest.raises(AdvisorError, match="no run of experiment 'e' logged a metric"):
            assemble(experiment([run(0, lr=1)]), **arguments)
    with pytest.raises(AdvisorError, match="cannot tell which metric"):
        assemble(experiment([run(0)], epoch=points((0, 1, 1, 1))))


def test_running_trials_are_no_study_yet():
    with pytest.raises(AdvisorError, match=r"no trial of experiment 'e' has ended yet \(1 are running\)"):
        assemble(experiment([run(0, "RUNNING", lr=1)], val__loss=points((0, 1, 1, 1))))
    study = assemble(experiment([run(0, "RUNNING", lr=1)], val__loss=points((0, 1, 1, 1))), unfinished=True)
    assert [t.status for t in study.trials] == ["running"]
