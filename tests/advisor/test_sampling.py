import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from advisor.errors import AdvisorError
from advisor.sampling import sample
from advisor.spec import Sampler, StudySpec
from advisor.spec_yaml import loads

SPEC = loads(
    """
study: s
objective: {metric: val/loss, direction: minimize}
parameters:
  learning_rate: {low: 1e-5, high: 1e-1, scale: log}
  layers: {type: int, low: 1, high: 4}
  optimizer: {role: scientific, choices: [sgd, adam]}
  momentum: {low: 0.5, high: 0.99, when: {optimizer: sgd}}
  width: {role: fixed, value: 64}
"""
)


def test_a_study_has_one_sequence_and_more_trials_continue_it():
    ten = list(sample(SPEC, 10))
    assert list(sample(SPEC, 10)) == ten
    assert list(sample(SPEC, 6, skip=4)) == ten[4:]


def test_the_sequence_is_the_same_on_every_platform():
    rates = [trial["learning_rate"] for trial in sample(SPEC, 3)]
    assert rates == pytest.approx([0.009025380833820271, 1.9444593559131267e-05, 0.0004189210689736295], rel=1e-12)


def test_the_order_of_the_parameters_does_not_matter():
    turned = SPEC.model_copy(update={"parameters": dict(reversed(SPEC.parameters.items()))})
    assert [dict(t) for t in sample(turned, 5)] == [dict(t) for t in sample(SPEC, 5)]


def test_another_seed_is_another_sequence():
    other = SPEC.model_copy(update={"sampler": Sampler(seed=1)})
    assert list(sample(other, 5)) != list(sample(SPEC, 5))


def test_values_keep_to_their_domains_and_conditions():
    trials = list(sample(SPEC, 200))
    for trial in trials:
        assert 1e-5 <= trial["learning_rate"] <= 1e-1
        assert trial["layers"] in (1, 2, 3, 4)
        assert isinstance(trial["layers"], int)
        assert ("momentum" in trial) == (trial["optimizer"] == "sgd")
        assert trial["width"] == 64
    assert 80 < sum(t["optimizer"] == "sgd" for t in trials) < 120
    logs = np.log10([t["learning_rate"] for t in trials])
    assert stats.kstest(logs, stats.uniform(-5, 4).cdf).pvalue > 0.5


def test_it_is_more_uniform_than_random_points():
    names = {f"p{i}": {"low": 0.0, "high": 1.0} for i in range(5)}
    spec = StudySpec.model_validate(
        {"study": "s", "objective": {"metric": "m", "direction": "minimize"}, "parameters": names}
    )

    def discrepancy(kind, seed):
        drawn = spec.model_copy(update={"sampler": Sampler(kind=kind, seed=seed)})
        return qmc.discrepancy([[t[n] for n in names] for t in sample(drawn, 64)])

    halton = [discrepancy("halton", seed) for seed in range(20)]
    random = [discrepancy("random", seed) for seed in range(20)]
    assert max(halton) < np.median(random)


def test_a_study_that_searches_nothing_repeats_its_setting():
    spec = loads("study: s\nobjective: {metric: m, direction: minimize}\nparameters:\n  a: {role: fixed, value: 1}\n")
    assert list(sample(spec, 2)) == [{"a": 1}, {"a": 1}]


def test_a_sequence_has_an_end():
    with pytest.raises(AdvisorError, match="1,000,000"):
        list(sample(SPEC, 1, skip=10**20))
