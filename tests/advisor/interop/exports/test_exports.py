"""Every export is loaded with the tool that it is for."""

import json
import math
import os
import subprocess
import sys

import pytest
import yaml
from mlflow import MlflowClient

from advisor.cli import main
from advisor.interop.exports import KINDS, export
from advisor.interop.exports.content import Past
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import dump, loads
from advisor.planning.sampling.halton import sample

ODD = "it's \\ a 'word' \\'"
PLAIN = loads(
    f"""
study: "it's a \\"study\\" of ''' things"
goal: "first line\\nimport os"
objective: {{metric: val/loss, direction: minimize}}
parameters:
  optimizer: {{role: scientific, choices: [sgd, {json.dumps(ODD)}, "x,y)"], why: "both\\nused"}}
  learning_rate: {{low: 1e-3, high: 1, scale: log, why: the last round}}
  layers: {{type: int, low: 1, high: 4}}
  batch_size: {{type: int, low: 8, high: 256, scale: log}}
  dropout: {{low: 0, high: 0.5}}
  nesterov: {{type: bool}}
  width: {{role: fixed, value: 64}}
  name: {{role: fixed, value: "some: text"}}
trials: 20
max_train_steps: 1000
schedule: {{kind: cosine}}
notes: [keep the best checkpoint]
"""
)
FULL = loads(
    """
study: s
objective: {metric: val/loss, direction: maximize}
parameters:
  learning_rate: {role: derived, formula: "effective_learning_rate * (1 - {sgd/momentum})", when: {optimizer: sgd}}
  sgd/momentum: {low: 0.5, high: 0.999, scale: reverse-log, when: {optimizer: sgd}}
  effective_learning_rate: {low: 1e-3, high: 10, scale: log}
  optimizer: {choices: [sgd, adam]}
  batch_size: {role: derived, type: int, formula: 8 * layers}
  layers: {type: int, low: 1, high: 4}
forbidden:
  - where: {learning_rate: {low: 0.5}}
    why: diverged
  - where: {optimizer: {choices: [adam]}, effective_learning_rate: {low: 1}}
trials: 20
"""
)


def inside(spec, params):
    """Whether a trial that a tool drew is one of the study's."""
    for name, parameter in spec.parameters.items():
        if name in params and parameter.searched:
            assert parameter.contains(params[name]), (name, params[name])
    assert spec.forbids(params) is None
    assert spec.completed({n: v for n, v in params.items() if spec.parameters[n].role != "derived"}) == pytest.approx(
        params
    )
    return True


def run_python(text):
    names = {"__name__": "exported"}
    exec(compile(text, "exported.py", "exec"), names)
    return names


@pytest.mark.parametrize("spec", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("sampler", ["halton", "random", "adaptive"])
def test_optuna_draws_the_studys_trials(spec, sampler):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spec = spec.model_copy(update={"sampler": spec.sampler.model_copy(update={"kind": sampler})})
    script = run_python(export("optuna", spec))
    seen = []

    def objective(trial):
        seen.append(script["suggest"](trial))
        return float(len(seen))

    study = script["create"]()
    study.optimize(objective, n_trials=40)
    assert study.direction.name.lower() == spec.objective.direction
    assert all(inside(spec, params) for params in seen)
    assert len(seen) + len(study.get_trials(states=[optuna.trial.TrialState.PRUNED])) == 40
    for name, parameter in spec.searched.items():
        assert len({params[name] for params in seen if name in params}) >= min(len(parameter.options) or 3, 3)


def test_optuna_gets_the_trials_so_far_and_those_to_run_next():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = list(sample(FULL, 12))
    past = [Past(params, None if i == 2 else 0.1 * i) for i, params in enumerate(drawn[:6])]
    script = run_python(export("optuna", FULL, points=drawn[6:], past=past))
    study = script["create"]()
    told = study.get_trials()[:6]
    assert [t.value for t in told] == pytest.approx([0.0, 0.1, None, 0.3, 0.4, 0.5])
    assert [t.state.name for t in told] == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 3
    asked = [script["suggest"](study.ask()) for _ in drawn[6:]]
    for params, wanted in zip(asked, drawn[6:], strict=True):
        assert dict(params) == pytest.approx(wanted)


def test_an_experiment_is_the_history_of_an_optuna_study(database, tmp_path, capsys):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
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
    rate = FULL.parameters["effective_learning_rate"].model_copy(
        update={"equals": "learning_rate / (1 - {sgd/momentum})"}
    )
    (tmp_path / "study.yaml").write_text(dump(FULL.with_parameter("effective_learning_rate", rate)))
    out = tmp_path / "study.py"
    main(
        [
            "export",
            "optuna",
            str(tmp_path / "study.yaml"),
            "--experiment",
            "e",
            "--tracking-uri",
            uri,
            "--out",
            str(out),
        ]
    )
    assert "1 of 4 trials lie outside of the space" in capsys.readouterr().err
    study = run_python(out.read_text())["create"]()
    assert [t.value for t in study.trials] == [0.5, None, 0.7]
    assert [t.params["effective_learning_rate"] for t in study.trials] == pytest.approx([0.1, 0.08, 0.08])
    assert [t.params["1 - sgd/momentum"] for t in study.trials] == pytest.approx([0.1, 0.25, 0.5])


def test_ray_draws_the_studys_trials():
    pytest.importorskip("ray.tune")
    from ray.tune.search.variant_generator import generate_variants

    module = run_python(export("ray", PLAIN))
    assert (module["METRIC"], module["MODE"], module["NUM_SAMPLES"]) == ("val/loss", "min", 20)
    drawn = [next(iter(generate_variants(module["space"])))[1] for _ in range(200)]
    assert all(inside(PLAIN, params) for params in drawn)
    assert {params["layers"] for params in drawn} == {1, 2, 3, 4}
    points = list(sample(FULL, 5))
    module = run_python(export("ray", FULL, points=points))
    assert [config["trial"] for _, config in generate_variants(module["space"])] == points


def test_wandb_takes_the_sweep():
    config = pytest.importorskip(
        "sweeps.config", reason="W&B's engine of local sweeps: pip install --no-deps sweeps jsonref"
    )
    sweep = yaml.safe_load(export("wandb", PLAIN))
    assert config.schema_violations_from_proposed_config(sweep) == []
    assert sweep["metric"] == {"name": "val/loss", "goal": "minimize"}
    import sweeps

    filled = config.SweepConfig(sweep)
    for _ in range(30):
        drawn = sweeps.next_run(filled, [], validate=False)
        params = {n: v["value"] for n, v in drawn.config.items()}
        assert inside(PLAIN, {**params, "batch_size": int(params["batch_size"])})
    points = list(sample(FULL, 5))
    grid = yaml.safe_load(export("wandb", FULL, points=points))
    assert config.schema_violations_from_proposed_config(grid) == []
    assert [json.loads(v) for v in grid["parameters"]["trial"]["values"]] == points


APP = """
import json
import hydra
from omegaconf import OmegaConf

@hydra.main(version_base=None, config_path=".", config_name="config")
def app(config):
    print("RAN " + json.dumps(OmegaConf.to_container(config)))

app()
"""


WORDS = PLAIN.with_parameter(
    "optimizer", PLAIN.parameters["optimizer"].model_copy(update={"choices": ("sgd", "torch.optim/Adam-W")})
)


def test_hydra_parses_the_space_and_runs_the_trials(tmp_path):
    pytest.importorskip("hydra")
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep

    space = yaml.safe_load(export("hydra", WORDS))["hydra"]["sweeper"]["params"]
    parsed = {
        o.key_or_group: o.value()
        for o in OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in space.items()])
    }
    assert isinstance(parsed["learning_rate"], IntervalSweep)
    assert (parsed["learning_rate"].start, parsed["learning_rate"].end, parsed["learning_rate"].tags) == (
        1e-3,
        1.0,
        {"log"},
    )
    assert (parsed["layers"].start, parsed["layers"].end) == (1, 4)
    assert [type(v) for v in (parsed["layers"].start, parsed["batch_size"].start)] == [int, int]
    assert parsed["batch_size"].tags == {"log"}
    assert isinstance(parsed["optimizer"], ChoiceSweep)
    assert [str(getattr(v, "text", v)) for v in parsed["optimizer"].list] == ["sgd", "torch.optim/Adam-W"]
    with pytest.raises(AdvisorError, match=r"cannot choose .* make it a plain word"):
        export("hydra", PLAIN)
    assert parsed["nesterov"].list == [False, True]
    assert parsed["width"] == 64
    points = list(sample(PLAIN, 3))
    (tmp_path / "config.yaml").write_text(export("hydra", PLAIN, points=points))
    (tmp_path / "app.py").write_text(APP)
    environment = {**os.environ, "HYDRA_FULL_ERROR": "1"}
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    ran = [json.loads(line.removeprefix("RAN ")) for line in done.stdout.splitlines() if line.startswith("RAN ")]
    assert [config["trial"] for config in ran] == points


def test_hydras_optuna_sweeper_draws_the_studys_trials(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs an Optuna older than 3")
    spec = WORDS.model_copy(update={"trials": 8})
    text = export("hydra", spec) + "\n".join(f"{name}: null" for name in spec.parameters) + "\n"
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "app.py").write_text(APP.replace("app()\n", "") + "    return 0.0\n\napp()\n")
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ran = [json.loads(line.removeprefix("RAN ")) for line in done.stdout.splitlines() if line.startswith("RAN ")]
    assert len(ran) == 8, done.stderr
    assert all(inside(spec, params) for params in ran)


def test_algoperf_finds_its_fields():
    space = json.loads(export("algoperf", PLAIN.with_parameter("batch_size", PLAIN.parameters["width"])))
    assert space["learning_rate"] == {"min": 1e-3, "max": 1.0, "scaling": "log"}
    assert space["dropout"] == {"min": 0.0, "max": 0.5, "scaling": "linear"}
    assert space["layers"] == {"feasible_points": [1, 2, 3, 4]}
    assert space["width"] == {"feasible_points": [64]}
    points = list(sample(PLAIN, 3))
    assert json.loads(export("algoperf", PLAIN, points=points)) == points
    for spec, message in ((PLAIN, "whole numbers on a log scale"), (FULL, "make attributes|makes attributes")):
        with pytest.raises(AdvisorError, match=message):
            export("algoperf", spec)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "optuna"])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("a: {low: 0, high: 1}\n  b: {role: derived, formula: 2 * a}", "compute 'b' from other hyperparameters"),
        ("a: {choices: [x, y]}\n  b: {low: 0, high: 1, when: {a: x}}", "search 'b' only under a condition"),
        ("a: {low: 0.9, high: 0.99, scale: reverse-log}", "search 'a' on a reverse-log scale"),
        ("a: {low: 0, high: 1}\nforbidden:\n- where: {a: {low: 0.5}}", "leave out forbidden regions"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(kind, parameters, message):
    spec = loads(f"study: s\nobjective: {{metric: m, direction: minimize}}\nparameters:\n  {parameters}\n")
    with pytest.raises(AdvisorError, match=f"cannot {message}; --points exports"):
        export(kind, spec)
    if "when" not in parameters:
        assert export(kind, spec, points=list(sample(spec, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_study_is_dropped_silently(kind):
    text = export(kind, PLAIN, points=list(sample(PLAIN, 2)))
    if kind != "algoperf":
        for line in ("max_train_steps: 1000", "schedule: {kind: cosine}", "notes: keep the best checkpoint"):
            assert f"Up to the training: {line}" in text
        assert "first line import os" in text


def test_the_command_writes_what_the_library_gives(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(dump(PLAIN))
    main(["export", "ray", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "space.py")])
    assert (tmp_path / "space.py").read_text() == export("ray", PLAIN)
    main(["export", "wandb", str(tmp_path / "study.yaml"), "--points", "-n", "2", "--skip", "1"])
    assert capsys.readouterr().out == export("wandb", PLAIN, points=list(sample(PLAIN, 2, skip=1)))
    with pytest.raises(SystemExit, match="2"):
        main(["export", "wandb", str(tmp_path / "study.yaml"), "-n", "2"])
    assert "ask for these with --points" in capsys.readouterr().err
