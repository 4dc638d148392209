"""Exported spaces, sampled by Ray Tune."""

import pytest
from exports import FULL, PLAIN, is_valid, run_python

from advisor.interop.exports import export
from advisor.planning.sampling.halton import draw_trials


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
