import pytest
from small_experiments import points, run, statuses, study_of


def test_a_sweeps_parent_is_no_trial_and_a_run_without_data_no_evidence():
    child = {"mlflow.parentRunId": "id0"}
    study = study_of([run(0), run(1, tags=child, lr=1), run(2, tags=child, lr=2)], val__loss=points((1, 1, 1, 101)))
    assert [t.name for t in study.trials] == ["r1", "r2"]
    assert study.warnings == ("1 run is the parent of other runs and is not counted as a trial.",)
    assert study.trials[1].status == "no_data"
    assert study.feasible.tolist() == [True, False]
    assert study.ended.tolist() == [True, False]


@pytest.mark.parametrize(
    ("parent", "children", "trials"),
    [
        ({"sweep": "x"}, [{"lr": 1}, {"lr": 2}], ["r1", "r2"]),  # logged its sweep's best value
        ({"lr": 3}, [{"lr": 1}, {"lr": 2}], ["r0", "r1", "r2"]),  # a trial itself
        ({"lr": 2, "best_lr": 2}, [{"lr": 1}, {"lr": 2}], ["r1", "r2"]),  # logged its sweep's best setting
        ({"lr": 3}, [{}, {}], ["r0", "r1", "r2"]),  # folds
        ({"lr": 3}, [{"lr": 3, "seed": 1}, {"lr": 3, "seed": 2}], ["r0", "r1", "r2"]),  # repeats
        ({"lr": 3, "seed": 0}, [{"wd": 3, "seed": 1}, {"wd": 4, "seed": 2}], ["r1", "r2"]),
    ],
)
def test_a_parent_is_a_trial_if_it_has_what_its_children_vary(parent, children, trials):
    child = {"mlflow.parentRunId": "id0"}
    runs = [run(0, **parent), *(run(i, tags=child, **params) for i, params in enumerate(children, 1))]
    study = study_of(runs, val__loss=points(*((i, 1, 1.0 + i, 101) for i in range(len(runs)))))
    assert [t.name for t in study.trials] == trials
    assert len(study.warnings) == ("r0" not in trials)


TWO_TRIALS = (0, 1, 3, 110), (0, 2, 2, 111), (1, 1, 3, 110), (1, 2, 1, 111)


def test_a_run_of_one_evaluation_is_no_trial():
    loss = points(*TWO_TRIALS, (2, 2, 0, 120))
    study = study_of([run(0, lr=1), run(1, lr=2), run(2)], val__loss=loss)
    assert [t.name for t in study.trials] == ["r0", "r1"]
    assert study.warnings == ("1 run contains one evaluation and no parameters, and is not counted as a trial.",)


def test_a_run_that_a_launcher_has_just_created_is_a_trial():
    runs = [run(0, lr=1), run(1, lr=2), run(2, "RUNNING", {"advisor.trial": "2"})]
    study = study_of(runs, val__loss=points(*TWO_TRIALS))
    assert statuses(study) == ["complete", "complete", "running"]
    assert study.warnings == ()
