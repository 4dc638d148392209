import pytest
from small_experiments import points, run, study_of

RATES = (0.1, 0.01, 0.001)


def study_with_tags(tags, **params):
    runs = [run(i, tags=each, **params) for i, each in enumerate(tags)]
    return study_of(runs, val__loss=points(*((i, 1, 1.0 + i, 101) for i in range(len(runs)))))


def test_tags_are_hyperparameters_if_no_run_logged_a_parameter():
    study = study_with_tags([{"lr": f"{r:g}", "optimizer": "sgd", "mlflow.user": "u", "advisor.seed": "1"} for r in RATES])
    assert [t.params["lr"] for t in study.trials] == list(RATES)
    assert set(study.searched) == {"lr"}
    assert [d.text for d in study.decisions if d.topic == "parameters"] == [
        "No run logged a parameter, so we read the hyperparameters from the runs' tags: lr."
    ]


@pytest.mark.parametrize(
    ("tags", "params"),
    [
        ([{"lr": f"{r:g}"} for r in RATES], {"wd": 0.1}),  # runs with parameters
        ([{"lr": "0.1"}] * 3, {}),  # nothing varies
        ([{"stage": s} for s in "abc"], {}),  # no number
        ([{"seed": s} for s in "123"], {}),  # no hyperparameter
        ([{"best_acc": f"0.{s}"} for s in "123"], {}),  # a measurement
        ([{"build_number": s} for s in "123"], {}),  # no setting
        ([{"lr": "0.1"}, {"lr": "0.2"}, {}], {}),  # not in every run
    ],
)
def test_other_tags_are_no_hyperparameters(tags, params):
    study = study_with_tags(tags, **params)
    assert not any(t.params.keys() - params.keys() for t in study.trials)
    assert not study.decisions


def test_tags_beside_hyperparameters_may_be_no_settings():
    others = {"api_key": "sk-planted", "owner": "alice", "branch": "main", "notes_on_it": "a" * 5000, "elapsed_s": "1"}
    study = study_with_tags([{"lr": f"{r:g}", **others} for r in RATES])
    assert {name for t in study.trials for name in t.params} == {"lr"}
