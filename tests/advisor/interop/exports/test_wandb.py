"""Exported sweeps, checked and sampled by W&B's engine of local sweeps."""

import json

import pytest
import yaml
from exports import FULL, PLAIN, is_valid

from advisor.interop.exports import export
from advisor.planning.sampling.halton import draw_trials


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
