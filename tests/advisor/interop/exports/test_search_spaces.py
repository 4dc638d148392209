"""Exported search spaces, as AlgoPerf, Ray Tune, W&B's engine of local sweeps and Hydra read them."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from exports import FULL, PLAIN, is_valid, run_python

from advisor.cli import main
from advisor.interop.exports import EXPORT_FORMATS, export
from advisor.model.errors import AdvisorError
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning.sampling.halton import draw_trials


def test_algoperf_finds_its_fields():
    space = json.loads(export("algoperf", PLAIN.with_parameter("batch_size", PLAIN.parameters["width"])))
    assert space["learning_rate"] == {"min": 1e-3, "max": 1.0, "scaling": "log"}
    assert space["dropout"] == {"min": 0.0, "max": 0.5, "scaling": "linear"}
    assert space["layers"] == {"feasible_points": [1, 2, 3, 4]}
    assert space["width"] == {"feasible_points": [64]}
    points = list(draw_trials(PLAIN, 3))
    assert json.loads(export("algoperf", PLAIN, points=points)) == points
    for spec, message in ((PLAIN, "integers on a log scale"), (FULL, "cannot use the name")):
        with pytest.raises(AdvisorError, match=message):
            export("algoperf", spec)


def test_ray_draws_the_studys_trials():
    pytest.importorskip("ray.tune")
    from ray.tune.search.variant_generator import generate_variants

    module = run_python(export("ray", PLAIN))
    assert (module["METRIC"], module["MODE"], module["NUM_SAMPLES"]) == ("val/loss", "min", 20)
    drawn = [next(iter(generate_variants(module["space"])))[1] for _ in range(200)]
    assert all(is_valid(PLAIN, params) for params in drawn)
    assert {params["layers"] for params in drawn} == {1, 2, 3, 4}
    points = list(draw_trials(FULL, 5))
    module = run_python(export("ray", FULL, points=points))
    assert [config["trial"] for _, config in generate_variants(module["space"])] == points


def test_wandb_takes_the_sweep():
    config = pytest.importorskip("sweeps.config", reason="W&B's engine of local sweeps: pip install --no-deps sweeps jsonref")
    sweep = yaml.safe_load(export("wandb", PLAIN))
    assert config.schema_violations_from_proposed_config(sweep) == []
    assert sweep["metric"] == {"name": "val/loss", "goal": "minimize"}
    import sweeps

    filled = config.SweepConfig(sweep)
    for _ in range(30):
        drawn = sweeps.next_run(filled, [], validate=False)
        params = {n: v["value"] for n, v in drawn.config.items()}
        assert is_valid(PLAIN, {**params, "batch_size": int(params["batch_size"])})
    points = list(draw_trials(FULL, 5))
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
        o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in space.items()])
    }
    assert isinstance(parsed["learning_rate"], IntervalSweep)
    assert (parsed["learning_rate"].start, parsed["learning_rate"].end, parsed["learning_rate"].tags) == (1e-3, 1.0, {"log"})
    assert (parsed["layers"].start, parsed["layers"].end) == (1, 4)
    assert [type(v) for v in (parsed["layers"].start, parsed["batch_size"].start)] == [int, int]
    assert parsed["batch_size"].tags == {"log"}
    assert isinstance(parsed["optimizer"], ChoiceSweep)
    assert [str(getattr(v, "text", v)) for v in parsed["optimizer"].list] == ["sgd", "torch.optim/Adam-W"]
    with pytest.raises(AdvisorError, match=r"cannot choose .* make the option a plain word"):
        export("hydra", PLAIN)
    assert parsed["nesterov"].list == [False, True]
    assert parsed["width"] == 64
    points = list(draw_trials(PLAIN, 3))
    (tmp_path / "config.yaml").write_text(export("hydra", PLAIN, points=points))
    (tmp_path / "app.py").write_text(APP)
    environment = {**os.environ, "HYDRA_FULL_ERROR": "1"}
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun"], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
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
    done = subprocess.run([sys.executable, "app.py", "--multirun"], cwd=tmp_path, capture_output=True, text=True, check=False)
    ran = [json.loads(line.removeprefix("RAN ")) for line in done.stdout.splitlines() if line.startswith("RAN ")]
    assert len(ran) == 8, done.stderr
    assert all(is_valid(spec, params) for params in ran)


@pytest.mark.parametrize("kind", [kind for kind in EXPORT_FORMATS if kind != "optuna"])
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
    spec = parse_study_file(f"study: s\nobjective: {{metric: m, direction: minimize}}\nparameters:\n  {parameters}\n")
    with pytest.raises(AdvisorError, match=f"cannot {message}; --points exports"):
        export(kind, spec)
    if "when" not in parameters:
        assert export(kind, spec, points=list(draw_trials(spec, 3)))


@pytest.mark.parametrize("kind", EXPORT_FORMATS)
def test_nothing_of_a_study_is_dropped_silently(kind):
    text = export(kind, PLAIN, points=list(draw_trials(PLAIN, 2)))
    if kind != "algoperf":
        for line in ("max_train_steps: 1000", "schedule: {kind: cosine}"):
            assert f"To be set in the training: {line}" in text
        assert "# Note: keep the best checkpoint" in text
        assert "first line import os" in text


def test_the_command_writes_what_the_library_gives(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(format_study_file(PLAIN))
    main(["export", "ray", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "space.py")])
    assert (tmp_path / "space.py").read_text() == export("ray", PLAIN)
    main(["export", "wandb", str(tmp_path / "study.yaml"), "--points", "-n", "2", "--skip", "1"])
    assert capsys.readouterr().out == export("wandb", PLAIN, points=list(draw_trials(PLAIN, 2, skip=1)))
    with pytest.raises(SystemExit, match="2"):
        main(["export", "wandb", str(tmp_path / "study.yaml"), "-n", "2"])
    assert "add --points, which exports trials instead of the space" in capsys.readouterr().err


def test_a_file_that_a_person_has_changed_stays(tmp_path, capsys):
    study, out = tmp_path / "study.yaml", tmp_path / "space.py"
    study.write_text(format_study_file(PLAIN))
    words = ["export", "ray", str(study), "--out", str(out)]
    main(words)
    main(words)  # the same text does no harm
    out.write_text("train()")
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "exists already; pass another --out, or --force" in capsys.readouterr().err
    assert out.read_text() == "train()"
    main([*words, "--force"])
    assert out.read_text() == export("ray", PLAIN)
