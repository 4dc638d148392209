from __future__ import annotations

from dataclasses import replace

from planning_studies import SPACE, asks, bowl, only_study

from advisor.model.spec import Parameter
from advisor.planning.sampling.halton import draw_trials


def test_a_sweep_of_batch_sizes_prepares_the_study() -> None:
    study = bowl()
    space = {**SPACE, "batch_size": Parameter(role="fixed", value=64)}
    study = replace(study, spec=study.spec.model_copy(update={"parameters": space}))
    spec = only_study(study, asks("batch-sweep", "efficiency", numbers={"from": 64.0}))
    assert spec.probe == "batch-size"
    assert sorted(int(t["batch_size"]) for t in draw_trials(spec, 8)) == [64 * 2**i for i in range(8)]
    assert spec.baseline.parameters["batch_size"].value == 64
    assert any("batch_size_sweep" in note for note in spec.notes)
