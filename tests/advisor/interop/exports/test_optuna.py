"""Exported scripts, run with Optuna."""

import math

import pytest
from exports import FULL, PLAIN, is_valid, run_python
from mlflow import MlflowClient

from advisor.cli import main
from advisor.interop.exports import export
from advisor.interop.exports.search_spaces import PastTrial
from advisor.model.spec_yaml import format_study_file, load_study_file
from advisor.planning.sampling.halton import draw_trials
from advisor.tracking import latest_spec

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.parametrize("spec", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("sampler", ["halton", "random", "adaptive"])
def test_optuna_draws_the_studys_trials(spec, sampler):
    spec = spec.model_copy(update={"sampler": spec.sampler.model_copy(update={"kind": sampler})})
    text = export("optuna", spec)
    assert f"MLflowCallback(metric_name={spec.objective.metric!r})" in text
    script = run_python(text)
    seen = []

    def objective(trial):
        seen.append(script["suggest"](trial))
        return float(len(seen))

    study = script["create"]()
    study.optimize(objective, n_trials=40)
    assert study.direction.name.lower() == spec.objective.direction
    assert all(is_valid(spec, params) for params in seen)
    assert len(seen) + len(study.get_trials(states=[optuna.trial.TrialState.PRUNED])) == 40
    for name, parameter in spec.searched.items():
        assert len({params[name] for params in seen if name in params}) >= min(len(parameter.options) or 3, 3)


def test_optuna_gets_the_trials_so_far_and_those_to_run_next():
    drawn = list(draw_trials(FULL, 12))
    past = [PastTrial(params, None if i == 2 else 0.1 * i) for i, params in enumerate(drawn[:6])]
    script = run_python(export("optuna", FULL, points=drawn[6:], past=past))
    study = script["create"]()
    past_trials = study.get_trials()[:6]
    assert [t.value for t in past_trials] == pytest.approx([0.0, 0.1, None, 0.3, 0.4, 0.5])
    assert [t.state.name for t in past_trials] == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 3
    asked = [script["suggest"](study.ask()) for _ in drawn[6:]]
    for params, wanted in zip(asked, drawn[6:], strict=True):
        assert dict(params) == pytest.approx(wanted)


def test_an_experiment_is_the_history_of_an_optuna_study(database, tmp_path, capsys):
    uri = database
    client = MlflowClient(uri)
    experiment = client.create_experiment("e")
    for momentum, rate, result in ((0.9, 0.01, 0.5), (0.75, 0.02, math.nan), (0.9, 5.0, 0.6), (0.5, 0.04, 0.7)):
        run = client.create_run(experiment).info.run_id
        for name, value in (("optimizer", "sgd"), ("sgd/momentum", momentum), ("learning_rate", rate), ("layers", 2)):
            client.log_param(run, name, value)
        for step in range(5):
            client.log_metric(run, "val/loss", result * step / 4, step=step)
        client.set_terminated(run)
    rate = FULL.parameters["effective_learning_rate"].model_copy(update={"equals": "learning_rate / (1 - {sgd/momentum})"})
    (tmp_path / "study.yaml").write_text(format_study_file(FULL.with_parameter("effective_learning_rate", rate)))
    out = tmp_path / "study.py"
    words = ["export", "optuna", str(tmp_path / "study.yaml"), "--experiment", "e"]
    main([*words, "--tracking-uri", uri, "--out", str(out)])
    said = capsys.readouterr().err
    assert "1 of 4 trials are outside the space" in said
    assert f"{FULL.study!r} will be round {FULL.round}" in said
    declared = client.get_experiment_by_name(FULL.study)
    assert latest_spec(declared.tags) == load_study_file(tmp_path / "study.yaml")
    study = run_python(out.read_text())["create"]()
    assert [t.value for t in study.trials] == [0.5, None, 0.7]
    assert [t.params["effective_learning_rate"] for t in study.trials] == pytest.approx([0.1, 0.08, 0.08])
    assert [t.params["1 - sgd/momentum"] for t in study.trials] == pytest.approx([0.1, 0.25, 0.5])
