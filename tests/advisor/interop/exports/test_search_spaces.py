"""Exported search spaces, as AlgoPerf, Ray Tune, W&B's engine of local sweeps and Hydra read them."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from exports import FULL, PLAIN, is_valid, run_python

from advisor.interop.exports import export
from advisor.model.errors import AdvisorError
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
