from __future__ import annotations

from typing import Any

import pytest
from planning_studies import asks, bowl, only_study, reparametrised

from advisor.model.spec import Sampler
from advisor.planning.sampling.halton import draw_trials


@pytest.mark.parametrize(
    ("design", "numbers", "times"),
    [("probe-early", {}, 2.0), ("warmup", {"unstable_learning_rate": 0.3, "times": 10.0}, None), ("batch-sweep", {}, 1.0)],
)
def test_probes_use_the_intended_learning_rate_even_if_it_is_computed(design: str, numbers: Any, times: Any) -> None:
    study = reparametrised()
    best = study.ranked()[0].params
    spec = only_study(study, asks(design, "stability", numbers=numbers))
    wanted = 3.0 * (1 - float(best["momentum"])) if times is None else times * float(best["lr"])
    for trial in draw_trials(spec, spec.trials or 1):
        assert trial["lr"] == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("kind", ["random", "adaptive"])
@pytest.mark.parametrize("steps", [40, 20_000])
def test_a_probe_trains_each_choice_once_with_any_sampler(kind: Any, steps: int) -> None:
    """With 40 steps there are three warmups to try, with 20,000 four."""
    study = bowl(sampler=Sampler(kind=kind, seed=1), max_train_steps=steps)
    spec = only_study(study, asks("warmup", "stability", numbers={"unstable_learning_rate": 0.3, "times": 10.0}))
    lengths = spec.parameters["warmup_steps"].choices
    assert sorted(int(t["warmup_steps"]) for t in draw_trials(spec, spec.trials or 0)) == list(lengths)
    assert spec.baseline.sampler.kind == kind
