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
        ([{"lr": "0.1"}, {"lr": "0.2"}, {}], {}),  # not in every run
    ],
)
def test_other_tags_are_no_hyperparameters(tags, params):
    study = study_with_tags(tags, **params)
    assert not any("lr" in t.params for t in study.trials)
