"""Exported search spaces of AlgoPerf."""

import json

import pytest
from exports import FULL, PLAIN

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
