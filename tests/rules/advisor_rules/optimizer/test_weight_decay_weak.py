"""The rule `weight-decay-weak`."""

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan

N = 1000
SPACE = {"lr": Parameter(low=1e-5, high=1e-3, scale="log"), "weight_decay": Parameter(low=1e-4, high=0.1, scale="log")}


def study_of(rates, decays, space=None, optimizer="AdamW", logged=True, steps=N, **more):
    count = len(rates)
    curves = {"val/loss": [np.linspace(2, 1 + 0.01 * i, 10) for i in range(count)]}
    at = {"val/loss": [range(steps // 10, steps + 1, steps // 10)] * count}
    if logged:
        curves["train/learning_rate"] = [rate * (1 - np.arange(steps) / steps) for rate in rates]
        at["train/learning_rate"] = [range(steps)] * count
    return make_study(
        [{"lr": r, "weight_decay": d} for r, d in zip(rates, decays, strict=True)],
        curves,
        steps=at,
        space=space,
        tags=[{"optimizer": optimizer, "max_train_steps": str(N)}] * count,
        **more,
    )


def example():
    return study_of([1e-4, 2e-4, 5e-5, 1e-4], [1e-3, 0.01, 0.05, 0.1], SPACE)


def test_fires_and_fixes_it():
    study = example()
    result = verdict("weight-decay-weak", study)
    (finding,) = result.findings

    assert (finding.severity, finding.subject, finding.side) == ("note", "weight_decay", "low")
    assert finding.confidence == 0.9
    (spec,) = plan(study, [result]).specs
    parameter = spec.parameters["weight_decay"]
    assert (parameter.role, parameter.value) == ("fixed", 0.001)


def test_a_fixed_weight_decay_gets_advice():
    study = study_of([1e-4, 2e-4], [0.01, 0.01], {"lr": SPACE["lr"], "weight_decay": Parameter(role="fixed", value=0.01)})
    (finding,) = verdict("weight-decay-weak", study).findings
    assert [c.kind for c in finding.changes] == ["advise"]
    assert finding.confidence == 0.8


def test_the_peak_rate_bounds_a_rate_that_was_not_logged():
    assert verdict("weight-decay-weak", study_of([1e-4] * 2, [0.01] * 2, logged=False)).status == "fired"
    assert verdict("weight-decay-weak", study_of([1e-2] * 2, [0.01] * 2, logged=False)).status == "quiet"


QUIET = {
    "acts in one trial": study_of([1e-4, 1e-3], [0.01, 0.1], SPACE),
    "just above the limit": study_of([1e-3], [0.063]),
    "none": study_of([1e-4, 1e-3], [0.0, 0.0]),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("weight-decay-weak", study).status == "quiet"


MISSING = {
    "L2 penalty": (study_of([1e-4], [0.01], optimizer="Adam"), "AdamW"),
    "cut short": (study_of([1e-4] * 2, [0.01] * 2, steps=300, status=["pruned"] * 2), "planned end"),
    "unknown": (make_study([{"optimizer": "adamw", "lr": 0.1}] * 2, {"val/loss": [[2.0, 1.0]] * 2}), "weight decay"),
}


@pytest.mark.parametrize(("study", "reason"), MISSING.values(), ids=MISSING.keys())
def test_says_what_it_lacks(study, reason):
    assert reason in lacking("weight-decay-weak", study)


def test_it_keeps_its_promise():
    """Studies in which any trial shrinks its weights by 4 % or more never raise it."""
    rng = np.random.default_rng(9)
    fired = 0
    for _ in studies(200):
        rates = 10 ** rng.uniform(-5, -2, size=rng.integers(1, 8))
        timescales = 10 ** rng.uniform(-6, -1.5, size=len(rates))
        timescales[0] = rng.uniform(0.041, 5)
        decays = timescales / (rates * (N + 1) / 2)
        fired += verdict("weight-decay-weak", study_of(rates.tolist(), decays.tolist())).status == "fired"
    assert fired == 0


def test_epochs_are_not_counted_as_optimizer_steps():
    params = [{"lr": 1e-4 * 3**i, "weight_decay": 0.01, "optimizer": "AdamW"} for i in range(4)]
    study = make_study(params, {"val/loss": [np.linspace(2, 1, 30)] * 4}, every=1)
    assert lacking("weight-decay-weak", study)


@pytest.mark.parametrize(
    ("facts", "status"),
    [({}, "not-assessed"), ({"step_unit": "step"}, "fired"), ({"step_unit": "epoch", "steps_per_epoch": "9"}, "not-assessed")],
)
def test_a_stated_unit_of_the_steps_decides(facts, status):
    """The second trial states its length, so the study's unit stays the step."""
    known = {"optimizer": "AdamW"}
    study = make_study(
        [{"lr": 1e-4 * 3**i, "weight_decay": 0.01} for i in range(2)],
        {"val/loss": [np.linspace(2, 1, 30)] * 2},
        every=1,
        tags=[known | facts, known | {"max_train_steps": "30"}],
    )
    assert verdict("weight-decay-weak", study).status == status
