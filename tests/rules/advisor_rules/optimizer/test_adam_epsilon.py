"""The rule `adam-epsilon`."""

from dataclasses import replace

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan
from advisor_rules.optimizer import _adam

N = 200
PARAMETERS = 10_000


def study_of(gradients, epsilon, space=None, facts=None, optimizer="AdamW", noise=0.3, seed=0, named=True):
    """gradients: typical gradient of a parameter in each trial; epsilon: one for all trials, or one for each."""
    rng = np.random.default_rng(seed)
    count = len(gradients)
    epsilons = epsilon if isinstance(epsilon, list) else [epsilon] * count
    norms = [g * np.sqrt(PARAMETERS) * np.exp(noise * rng.normal(size=N)) for g in gradients]
    noted = {"optimizer": optimizer, "model_parameters": str(PARAMETERS), **(facts or {})}
    return make_study(
        [{"lr": 0.001 * (i + 1)} | ({"eps": e} if named else {}) for i, e in enumerate(epsilons)],
        {"val/loss": [np.linspace(2, 1 + 0.01 * i, 10) for i in range(count)], "train/grad_norm": norms},
        steps={"val/loss": [range(20, N + 1, 20)] * count, "train/grad_norm": [range(N)] * count},
        tags=[noted | {"optimizer.epsilon": repr(e)} for e in epsilons],
        space=space,
    )


RATE = Parameter(low=1e-4, high=1e-2, scale="log")


def example():
    return study_of([2e-7, 3e-7, 2.5e-7], 1e-6, {"lr": RATE, "eps": Parameter(role="fixed", value=1e-6)})


def test_fires_and_fixes_a_smaller_epsilon():
    study = example()
    result = verdict("adam-epsilon", study)
    (finding,) = result.findings

    assert (finding.severity, finding.confidence, finding.subject) == ("note", 0.6, "eps")
    (spec,) = plan(study, [result]).specs
    assert spec.parameters["eps"].value == pytest.approx(1e-10)


def test_without_the_parameter_it_advises():
    (finding,) = verdict("adam-epsilon", study_of([2e-7] * 3, 1e-6, {"lr": RATE}, named=False)).findings
    assert [c.kind for c in finding.changes] == ["advise"]
    assert finding.subject is None


def test_clipping_counts():
    assert verdict("adam-epsilon", study_of([1e-3] * 2, 1e-5)).status == "quiet"
    assert verdict("adam-epsilon", study_of([1e-3] * 2, 1e-5, facts={"grad_clip_norm": "0.0001"})).status == "fired"


QUIET = {
    "the usual epsilon": study_of([1e-4] * 3, 1e-8),
    "half of the gradient": study_of([1e-4] * 3, 5e-5),
    "large in one good trial of three": study_of([1e-4, 1e-4, 1e-7], 1e-5),
    "searched": study_of([1e-7] * 3, [1e-8, 1e-6, 1e-5], {"lr": RATE, "eps": Parameter(low=1e-8, high=1e-3, scale="log")}),
}


@pytest.mark.parametrize("study", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(study):
    assert verdict("adam-epsilon", study).status == "quiet"


MISSING = {
    "another optimizer": (study_of([1e-7], 1e-5, optimizer="SGD"), "Adam"),
    "no parameters": (study_of([1e-7], 1e-5, facts={"model_parameters": "?"}), "number of parameters"),
    "no norms": (make_study([{"optimizer": "adam"}] * 2, {"val/loss": [[2.0, 1.0]] * 2}), "gradient norm"),
}


@pytest.mark.parametrize(("study", "reason"), MISSING.values(), ids=MISSING.keys())
def test_says_what_it_lacks(study, reason):
    assert reason in lacking("adam-epsilon", study)


def test_it_keeps_its_promise():
    """Gradients that are typically twice epsilon never raise it, however noisy and whatever the number of trials."""
    rng = np.random.default_rng(5)
    fired = 0
    for i in studies(200):
        size = 10 ** rng.uniform(-9, -2)
        gradients = list(2 * size * rng.uniform(1, 10, size=rng.integers(1, 8)))
        fired += verdict("adam-epsilon", study_of(gradients, size, noise=rng.uniform(0, 1), seed=i)).status == "fired"
    assert fired == 0


def test_an_epsilon_that_is_not_adams_is_left_alone():
    """An attack of size `eps` or a privacy budget `epsilon`: the hook noted no epsilon of the optimizer, or another one."""
    study = study_of([1e-3] * 3, 8.0, named=True)
    foreign = replace(study, trials=tuple(replace(t, facts=_without_epsilon(t.facts)) for t in study.trials))
    assert lacking("adam-epsilon", foreign)


def _without_epsilon(facts):
    return {name: value for name, value in facts.items() if name != "optimizer.epsilon"}


@pytest.mark.parametrize(
    ("name", "own"), [("adam_epsilon", True), ("optimizer.eps", True), ("adam_eps", True), ("eps", False), ("epsilon", False)]
)
def test_names_with_a_word_for_the_optimizer_are_adams(name, own):
    assert _adam.is_adam_epsilon(name) == own


def test_a_parameter_with_another_value_than_adams_is_not_fixed():
    """The hook noted 1e-6; the hyperparameter `eps` of 8 is a privacy budget."""
    study = study_of([2e-7] * 3, 1e-6, {"lr": RATE, "eps": Parameter(role="fixed", value=8.0)})
    budget = replace(study, trials=tuple(replace(t, params={**t.params, "eps": 8.0}) for t in study.trials))
    (finding,) = verdict("adam-epsilon", budget).findings
    assert (finding.subject, [c.kind for c in finding.changes]) == (None, ["advise"])
