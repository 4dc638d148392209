import pytest

from advisor import analyze
from advisor.tracking import read_study
from advisor.tracking.runs import Run
from advisor.tracking.study import declared


def trial(**tags):
    return Run("id", "name", "FINISHED", {}, {"number": "0", "state": "COMPLETE", **tags})


LOG = "FloatDistribution(high=0.1, log=True, low=1e-05, step=None)"


@pytest.mark.parametrize(
    ("text", "value", "domain"),
    [
        (LOG, 0.05, (1e-5, 0.1, "log", "float")),
        ("IntDistribution(high=8, log=False, low=1, step=1)", 3, (1, 8, "linear", "int")),
        ("LogUniformDistribution(high=0.1, low=0.001)", 0.05, (0.001, 0.1, "log", "float")),
        (LOG, 5.0, None),  # does not fit the value
        ("FloatDistribution(high=0.1, lo...", 0.05, None),
        ("open('x')", 0.05, None),
        ("FloatDistribution(high=0.1)", 0.05, None),
        ("normal", 0.05, None),
    ],
)
def test_distributions_in_tags_are_ranges_and_other_tags_declare_nothing(text, value, domain):
    found = declared.tuner_parameters([trial(x_distribution=text)], [{"x": value}])
    assert {name: (p.low, p.high, p.scale, p.type) for name, p in found.items()} == ({"x": domain} if domain else {})


def test_ranges_that_changed_are_joined():
    texts = [f"FloatDistribution(high={h}, log=False, low=0.0, step=None)" for h in (0.1, 0.5)]
    found = declared.tuner_parameters([trial(x_distribution=t) for t in texts], [{"x": 0.05}, {"x": 0.4}])
    assert (found["x"].low, found["x"].high) == (0.0, 0.5)


def test_the_direction_in_tags():
    assert declared.tuner_direction([trial(direction="MAXIMIZE")]) == "maximize"
    assert declared.tuner_direction([trial(direction="['MINIMIZE', 'MAXIMIZE']")]) is None
    assert declared.tuner_direction([Run("id", "name", "FINISHED", {}, {"direction": "MAXIMIZE"})]) is None


def test_a_study_of_optunas_callback_is_read_as_declared(tmp_path):
    """Needs the package optuna-integration, which holds the callback."""
    pytest.importorskip("optuna_integration")
    import mlflow
    import optuna
    from optuna_integration import MLflowCallback

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    callback = MLflowCallback(tracking_uri=uri, metric_name="val_acc")

    @callback.track_in_mlflow()
    def objective(trial):
        lr = trial.suggest_float("lr", 1e-5, 1.0, log=True)
        act = trial.suggest_categorical("act", ["relu", None])
        best = 0.0
        for step in range(1, 4):
            accuracy = 0.9 - abs(lr - 0.01) / 10 - 0.1 / step - 0.01 * (act is None)
            mlflow.log_metric("val_acc", accuracy, step=step)
            best = max(best, accuracy)
        return best

    optuna.create_study(study_name="s", direction="maximize").optimize(objective, n_trials=6, callbacks=[callback])
    study = read_study("s", tracking_uri=uri)
    assert (study.spec.parameters["lr"].low, study.spec.parameters["lr"].high) == (1e-5, 1.0)
    assert study.spec.parameters["act"].options == ("relu", "None")
    assert [study.cost_curve(t).steps.tolist() for t in study.trials] == [[1, 2, 3]] * 6
    assert not study.minimize
    assert "lr" not in study.inferred
    assert any("without a step" in d.text for d in study.decisions)
    assert analyze("s", tracking_uri=uri).best is not None
