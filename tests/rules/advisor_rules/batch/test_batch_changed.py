"""The rule `batch-changed`."""

from dataclasses import replace

import numpy as np
import pytest
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan

RATES = [0.01, 0.02, 0.05, 0.1, 0.2]


def study_of(*rounds, **more):
    """rounds: (name, learning rates, facts, further hyperparameters)."""
    params, tags = [], []
    for name, rates, facts, others in rounds:
        params += [{"lr": r} | others for r in rates]
        tags += [{"study": name, "schema": "1"} | facts for _ in rates]
    return make_study(params, {"val/loss": [[2.0, 1.0 + 0.01 * i] for i in range(len(params))]}, tags=tags, **more)


def one(name, rates, size=64, **others):
    return (name, rates, {"batch_size": str(size), "optimizer": "SGD", "model": "Net", "model_parameters": "1000"}, others)


def example():
    return study_of(one("mnist", RATES), one("mnist-round-2", [0.05] * 3, 512))


def test_a_batch_size_that_changed_untuned_fires():
    study = example()
    result = verdict("batch-changed", study)
    (finding,) = result.findings
    assert finding.trials == ("run5", "run6", "run7")
    (spec,) = plan(study, [result]).specs
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (0.005, 0.5)
    assert "again for mnist-round-2" in spec.notes[0]


CHANGED = {
    "optimizer": ({"optimizer": "Adam"}, "from SGD to Adam"),
    "model": ({"model": "Wide", "model_parameters": "5000"}, "from Net (1,000 parameters) to Wide (5,000 parameters)"),
}


@pytest.mark.parametrize(("facts", "change"), CHANGED.values(), ids=CHANGED.keys())
def test_so_does_an_optimizer_or_a_model(facts, change):
    name, rates, first, others = one("a", RATES)
    study = study_of((name, rates, first, others), ("b", [0.05, 0.1], first | facts, others))
    (finding,) = verdict("batch-changed", study).findings
    assert change in finding.message
    assert "2 learning rates" in finding.message


def test_hyperparameters_count_if_nothing_was_noted():
    study = study_of(
        ("a", RATES, {}, {"batch_size": 32, "optimizer": "sgd"}), ("b", [0.05], {}, {"batch_size": 64, "optimizer": "adam"})
    )
    (finding,) = verdict("batch-changed", study).findings
    assert "from 32 to 64" in finding.message
    assert "from sgd to adam" in finding.message


def test_choices_of_a_learning_rate_get_advice_only():
    space = {"lr": Parameter(type="categorical", choices=tuple(RATES))}
    study = study_of(one("a", RATES), one("b", [0.05], 512), space=space)
    (finding,) = verdict("batch-changed", study).findings
    assert [c.kind for c in finding.changes] == ["advise"]


QUIET = {
    "nothing changed": study_of(one("a", RATES), one("b", [0.05] * 3)),
    "tuned again": study_of(one("a", RATES), one("b", RATES[:3], 512)),
    "never tuned": study_of(one("a", [0.05]), one("b", [0.05], 512)),
    "sizes differ within a round": study_of(
        ("a", RATES, {}, {"batch_size": 32}), ("b", [0.05], {}, {"batch_size": 64}), ("b", [0.05], {}, {"batch_size": 128})
    ),
    "sizes unknown": study_of(("a", RATES, {}, {}), ("b", [0.05], {}, {})),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("batch-changed", study).status == "quiet"


def test_without_a_lineage_it_cannot_tell():
    study = study_of(one("a", RATES))
    assert "one study" in lacking("batch-changed", study)
    spec = study.spec.model_copy(update={"parent": "mnist"})
    result = verdict("batch-changed", replace(study, spec=spec))
    assert "none belongs to its parent study mnist" in result.reason


def test_it_keeps_its_promise():
    """Rounds that change nothing never fire, whatever rates they try."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        rounds = [one(f"r{i}", 10 ** rng.uniform(-3, 0, rng.integers(1, 8))) for i in range(rng.integers(2, 5))]
        assert verdict("batch-changed", study_of(*rounds)).status == "quiet"
