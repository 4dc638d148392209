import math
from dataclasses import replace

import numpy as np
import pytest

from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking import study_tags
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble


def run(i, status="FINISHED", tags=None, **params):
    return Run(
        id=f"id{i}",
        name=f"r{i}",
        status=status,
        params={k: str(v) for k, v in params.items()},
        tags=tags or {},
        started=100.0,
    )


def points(*rows):
    runs, steps, values, times = zip(*rows, strict=True)
    return Points(np.array(runs), np.array(steps), np.array(values, dtype=float), np.array(times, dtype=float))


def experiment(runs, **metrics):
    return Experiment("e", tuple(runs), {name.replace("__", "/"): p for name, p in metrics.items()})


def test_points_are_sorted_and_the_last_of_a_step_counts():
    study = assemble(
        experiment(
            [run(0, lr=1), run(1, lr=2)],
            val__loss=points((1, 20, 5, 130), (0, 20, 2, 120), (0, 10, 9, 105), (0, 10, 1, 110)),
        )
    )
    first = study.cost_curve(study.trials[0])
    assert first.steps.tolist() == [10, 20]
    assert first.values.tolist() == [1, 2]
    assert first.times.tolist() == [10, 20]
    assert study.cost_curve(study.trials[1]).values.tolist() == [5]


@pytest.mark.parametrize(("first", "between"), [(0, 0), (1_700_000_000 * 10**9, 10**9), (-(2**63), 1)])
def test_a_metric_logged_without_usable_steps_has_the_order_of_logging(first, between):
    """All at one step, or at times in nanoseconds."""
    values = [(0, first + i * between, 3 - i, 110 + 10 * i) for i in range(3)]
    study = assemble(experiment([run(0, lr=1)], val__loss=points(*values)))
    assert study.cost_curve(study.trials[0]).values.tolist() == [3, 2, 1]
    assert study.cost_curve(study.trials[0]).steps.tolist() == [0, 1, 2]
    assert "without usable steps" in study.warnings[0]


def test_what_a_tuner_pruned_is_no_crash():
    runs = [run(i, status="FAILED", tags={"state": state}) for i, state in enumerate(("TrialState.PRUNED", "FAIL"))]
    study = assemble(experiment(runs, loss=points((0, 1, 1.0, 101), (1, 1, 1.0, 101))))
    assert [t.status for t in study.trials] == ["stopped", "infeasible"]


@pytest.mark.parametrize(
    ("mlflow_status", "tag", "last", "status"),
    [
        ("FINISHED", None, 1.0, "complete"),
        ("FINISHED", None, math.nan, "diverged"),
        ("FINISHED", None, math.inf, "diverged"),
        ("FINISHED", None, 1e101, "diverged"),
        ("FINISHED", "stopped", 1.0, "stopped"),
        ("FAILED", None, 1.0, "infeasible"),
        ("KILLED", None, 1.0, "stopped"),
        ("RUNNING", None, 1.0, "running"),
        ("RUNNING", "running", 1.0, "running"),
        ("FAILED", "diverged", 1.0, "diverged"),
        ("FINISHED", "nonsense", 1.0, "complete"),
    ],
)
def test_how_a_trial_ended(mlflow_status, tag, last, status):
    tags = {"advisor.status": tag} if tag else {}
    metric = points((0, 1, 1, 101), (0, 2, last, 102), (1, 1, 1, 101))
    study = assemble(experiment([run(0, mlflow_status, tags, lr=1), run(1, lr=2)], val__loss=metric))
    assert study.trials[0].status == status


def test_an_evaluation_that_broke_is_no_divergence():
    """Trial 0 trained on, 1 did not, of 2 no loss was logged after its last evaluation, and 3 was never evaluated well."""
    evaluated = [
        (i, step, math.nan if step == 3 or i == 3 else 1.0, 100 + step) for i in range(4) for step in (1, 2, 3)
    ]
    loss = [(i, step, math.nan if (i, step) == (1, 3) else 1.0, 100 + step) for i in range(4) for step in (1, 2, 3)]
    loss = [point for point in loss if point[:2] != (2, 3)]
    runs = [run(i, lr=i + 1) for i in range(4)]
    study = assemble(experiment(runs, val__loss=points(*evaluated), train__loss=points(*loss)), objective="val/loss")
    assert [t.status for t in study.trials] == ["complete", "diverged", "diverged", "diverged"]
    assert study.feasible.tolist() == [True, False, False, False]


def test_a_sweeps_parent_is_not_a_trial_and_a_dataless_run_is_no_evidence():
    child = {"mlflow.parentRunId": "id0"}
    study = assemble(
        experiment([run(0), run(1, tags=child, lr=1), run(2, tags=child, lr=2)], val__loss=points((1, 1, 1, 101)))
    )
    assert [t.name for t in study.trials] == ["r1", "r2"]
    assert study.warnings == ("1 run holds others together and is not counted as a trial.",)
    assert study.trials[1].status == "no_data"
    assert study.feasible.tolist() == [True, False]
    assert study.ended.tolist() == [True, False]


@pytest.mark.parametrize(
    ("parent", "children", "trials"),
    [
        ({"sweep": "x"}, [{"lr": 1}, {"lr": 2}], ["r1", "r2"]),  # logged its sweep's best value
        ({"lr": 3}, [{"lr": 1}, {"lr": 2}], ["r0", "r1", "r2"]),  # a trial itself
        ({"lr": 3}, [{}, {}], ["r0", "r1", "r2"]),  # folds
        ({"lr": 3}, [{"lr": 3, "seed": 1}, {"lr": 3, "seed": 2}], ["r0", "r1", "r2"]),  # repeats
        ({"lr": 3, "seed": 0}, [{"wd": 3, "seed": 1}, {"wd": 4, "seed": 2}], ["r1", "r2"]),
    ],
)
def test_a_parent_with_the_objective_is_a_trial_if_it_has_what_its_children_vary(parent, children, trials):
    child = {"mlflow.parentRunId": "id0"}
    runs = [run(0, **parent), *(run(i, tags=child, **given) for i, given in enumerate(children, 1))]
    study = assemble(experiment(runs, val__loss=points(*((i, 1, 1.0 + i, 101) for i in range(len(runs))))))
    assert [t.name for t in study.trials] == trials
    assert len(study.warnings) == ("r0" not in trials)


def test_a_parameter_named_objective_says_nothing_of_the_objective():
    data = experiment([run(0, objective="reg:squarederror", lr=1)], val__loss=points((0, 1, 1, 1)))
    assert "objective" not in assemble(data, objective="val/loss").inferred


def declared(**parameters):
    return StudySpec(study="s", objective=Objective(metric="val/loss", direction="minimize"), parameters=parameters)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            declared(lr=Parameter(low=5, high=10)),
            "searches 'lr' from 5 to 10, but no trial used a value in it; the trials used 0.001 to 0.004",
        ),
        (
            declared(opt=Parameter(choices=("lion", "lamb"))),
            "searches 'opt' among lion, lamb, but no trial used a value in it; the trials used adam, sgd",
        ),
        (declared(depth=Parameter(choices=(3, 4))), "among 3, 4, but no trial .* the trials used 2"),
    ],
)
def test_a_space_that_no_trial_lies_in_is_of_another_study(spec, message):
    runs = [run(i, lr=0.001 * (i + 1), opt="sgd" if i % 2 else "adam", depth=2) for i in range(4)]
    data = experiment(runs, val__loss=points(*((i, 1, 1, 1) for i in range(4))))
    with pytest.raises(AdvisorError, match=message):
        assemble(data, spec=spec)


def test_trials_outside_of_the_declared_space_are_counted():
    spec = declared(
        lr=Parameter(low=0.002, high=10, scale="log"),
        opt=Parameter(choices=("sgd", "lion")),
        bn=Parameter(type="bool"),
        width=Parameter(choices=(1, "auto")),
    )
    runs = [
        run(i, lr=0.001 * i, opt="sgd" if i else "adam", bn=bool(i % 2), width="auto" if i else 1) for i in range(4)
    ]
    study = assemble(experiment(runs, val__loss=points(*((i, 1, 1, 1) for i in range(4)))), spec=spec)
    assert study.warnings == (
        "2 of 4 trials used a value of 'lr' that the study file, from 0.002 to 10, leaves out.",
        "1 of 4 trials used a value of 'opt' that the study file, among sgd, lion, leaves out.",
    )


def test_values_that_passed_through_32_bits_are_not_outside():
    runs = [run(0, lr=float(np.float32(0.1))), run(1, lr=float(np.float32(0.3)))]
    data = experiment(runs, val__loss=points((0, 1, 1, 1), (1, 1, 1, 1)))
    for parameter in (Parameter(low=0.1, high=0.3), Parameter(choices=(0.1, 0.3))):
        assert assemble(data, spec=declared(lr=parameter)).warnings == ()


def test_an_only_metric_without_split_is_the_objective_and_said_to_be_inferred():
    study = assemble(experiment([run(0, lr=1)], accuracy=points((0, 1, 0.5, 1)), epoch=points((0, 1, 1, 1))))
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("accuracy", "maximize")
    assert study.inferred["objective"].endswith("of which none says that it is of validation data")


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


def test_the_declared_space_wins_and_the_rest_is_inferred():
    runs = [run(i, lr=10.0**-i, wd=0.1 * i, model="cnn") for i in range(1, 6)]
    spec = StudySpec(
        study="declared",
        objective=Objective(metric="val/loss", direction="minimize"),
        parameters={"lr": Parameter(low=1e-6, high=1, scale="log")},
    )
    data = experiment(runs, val__loss=points(*((i, 1, 1.0, 1) for i in range(5))))
    study = assemble(data, spec=spec)
    assert (study.searched["lr"].low, study.searched["lr"].type) == (1e-6, "float")
    assert study.searched["wd"].scale == "linear"
    assert study.spec.parameters["model"].value == "cnn"
    assert study.inferred == {"wd": "range inferred from the trials", "model": "the same in every trial"}


def test_trials_of_another_form_are_read_in_the_form_that_is_searched():
    runs = [run(i, learning_rate=0.1 * (i + 1), momentum=0.9) for i in range(4)]
    spec = declared(
        rate=Parameter(low=0.1, high=10, scale="log", equals="learning_rate / (1 - momentum)"),
        momentum=Parameter(role="fixed", value=0.9),
        learning_rate=Parameter(role="derived", formula="rate * (1 - momentum)"),
    )
    data = experiment(runs, val__loss=points(*((i, 1, 1.0, 1) for i in range(4))))
    study = assemble(data, spec=spec)
    assert [t.params["rate"] for t in study.trials] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert list(study.searched) == ["rate"]
    noted = experiment(runs, val__loss=points(*((i, 1, 1.0, 1) for i in range(4))))
    noted = replace(noted, tags={**noted.tags, **study_tags.tags_of(spec)})
    assert assemble(noted).spec.parameters == study.spec.parameters


def test_seeds_and_facts_are_kept_apart_from_hyperparameters():
    tags = {"advisor.seed": "7", "advisor.max_train_steps": "2"}
    study = assemble(experiment([run(0, tags=tags, lr=1)], val__loss=points((0, 1, 1, 1), (0, 2, 1, 2))))
    trial = study.trials[0]
    assert (trial.seed, trial.fact("max_train_steps"), study.spec.max_train_steps) == (7, 2.0, 2)
    assert math.isnan(trial.fact("nothing"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "nope"}, "no run logged the objective 'nope'; metrics that were logged: odd, val/loss"),
        ({"objective": "odd"}, "pass --direction"),
        (
            {
                "spec": StudySpec(study="s", objective=Objective(metric="odd", direction="minimize")),
                "objective": "val/loss",
            },
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


def test_a_parameter_under_a_condition_that_no_trial_met_need_not_be_logged():
    space = {
        "opt": Parameter(type="categorical", choices=("sgd", "adam")),
        "momentum": Parameter(low=0.5, high=0.99, when={"opt": "sgd"}),
    }
    spec = StudySpec(study="s", objective=Objective(metric="val/loss", direction="minimize"), parameters=space)
    logged = {"val__loss": points((0, 1, 1, 1), (1, 1, 2, 1))}
    study = assemble(experiment([run(0, opt="adam"), run(1, opt="adam")], **logged), spec=spec)
    assert study.spec.parameters["momentum"].type == "float"
    with pytest.raises(AdvisorError, match="searches 'momentum', but no run logged"):
        assemble(experiment([run(0, opt="sgd"), run(1, opt="adam")], **logged), spec=spec)


def test_nothing_to_analyse():
    with pytest.raises(AdvisorError, match="has no runs"):
        assemble(Experiment("e", (), {}))
    for given in ({}, {"objective": "val/loss"}):
        with pytest.raises(AdvisorError, match="no run of experiment 'e' logged a metric"):
            assemble(experiment([run(0, lr=1)]), **given)
    with pytest.raises(AdvisorError, match="cannot tell which metric"):
        assemble(experiment([run(0)], epoch=points((0, 1, 1, 1))))


def test_trials_that_still_run_are_no_study_yet():
    with pytest.raises(AdvisorError, match=r"no trial of experiment 'e' has ended yet \(1 are running\)"):
        assemble(experiment([run(0, "RUNNING", lr=1)], val__loss=points((0, 1, 1, 1))))


def test_a_run_that_a_tool_began_for_one_evaluation_is_no_trial():
    study = assemble(
        experiment(
            [run(0, lr=1), run(1, lr=2), run(2)],
            val__loss=points((0, 1, 3, 110), (0, 2, 2, 111), (1, 1, 3, 110), (1, 2, 1, 111), (2, 2, 0, 120)),
        )
    )
    assert [t.name for t in study.trials] == ["r0", "r1"]
    assert study.warnings == ("1 run holds one evaluation and no parameters, and is not counted as a trial.",)


def test_what_parameters_say_of_steps_batch_and_objective():
    settings = {
        "max_steps": 20,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "auto_batch_size": False,
    }
    study = assemble(
        experiment(
            [run(i, lr=i, monitor="val_f1", mode="min", trainer__seed=i, data_seed=9, **settings) for i in range(3)],
            val_f1=points(*[(i, s, s + i, 100 + s) for i in range(3) for s in (10, 20)]),
            val_acc=points(*[(i, s, s + i, 100 + s) for i in range(3) for s in (10, 20)]),
        )
    )
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("val_f1", "minimize")
    assert "parameter" in study.inferred["objective"]
    assert [t.fact("batch_size") for t in study.trials] == [16] * 3
    assert [study.planned_steps(t) for t in study.trials] == [20] * 3
    assert [t.seed for t in study.trials] == [0, 1, 2]


@pytest.mark.parametrize(("metric", "warned"), [("test_acc", True), ("val_acc", False), ("accuracy", False)])
def test_choosing_by_test_data_is_warned_of(metric, warned):
    study = assemble(experiment([run(0, lr=1)], **{metric: points((0, 1, 0.5, 1))}))
    assert bool(study.warnings) == warned
    assert not warned or "test data" in study.warnings[0]
