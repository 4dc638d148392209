import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from advisor.model.errors import AdvisorError
from advisor.model.spec import Bounds, Region, Sampler, StudySpec
from advisor.model.spec_yaml import parse_study_file
from advisor.planning.sampling.halton import draw_trials

SPEC = parse_study_file(
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
    ten = list(draw_trials(SPEC, 10))
    assert list(draw_trials(SPEC, 10)) == ten
    assert list(draw_trials(SPEC, 6, skip=4)) == ten[4:]


def test_the_sequence_is_the_same_on_every_platform():
    assert list(draw_trials(SPEC, 3)) == [
        {"learning_rate": 0.00902538083382, "layers": 2, "optimizer": "adam", "width": 64},
        {"learning_rate": 1.94445935591e-05, "layers": 4, "optimizer": "adam", "width": 64},
        {"learning_rate": 0.000418921068974, "layers": 3, "optimizer": "sgd", "momentum": 0.652692764631, "width": 64},
    ]


def test_the_order_of_the_parameters_does_not_matter():
    turned = SPEC.model_copy(update={"parameters": dict(reversed(SPEC.parameters.items()))})
    assert [dict(t) for t in draw_trials(turned, 5)] == [dict(t) for t in draw_trials(SPEC, 5)]


def test_another_seed_is_another_sequence():
    other = SPEC.model_copy(update={"sampler": Sampler(seed=1)})
    assert list(draw_trials(other, 5)) != list(draw_trials(SPEC, 5))


def test_values_keep_to_their_domains_and_conditions():
    trials = list(draw_trials(SPEC, 200))
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
    spec = StudySpec.model_validate({"study": "s", "objective": {"metric": "m", "direction": "minimize"}, "parameters": names})

    def discrepancy(kind, seed):
        drawn = spec.model_copy(update={"sampler": Sampler(kind=kind, seed=seed)})
        return qmc.discrepancy([[t[n] for n in names] for t in draw_trials(drawn, 64)])

    halton = [discrepancy("halton", seed) for seed in range(20)]
    random = [discrepancy("random", seed) for seed in range(20)]
    assert max(halton) < np.median(random)


REPARAMETRISED = parse_study_file(
    """
study: s
objective: {metric: val/loss, direction: minimize}
parameters:
  learning_rate: {role: derived, formula: effective_learning_rate * (1 - momentum)}
  effective_learning_rate: {low: 1e-3, high: 10, scale: log, equals: learning_rate / (1 - momentum)}
  momentum: {low: 0.5, high: 0.999, scale: reverse-log, when: {optimizer: sgd}}
  optimizer: {choices: [sgd, adam]}
forbidden:
  - where: {learning_rate: {low: 0.5}}
    why: diverged
  - where: {optimizer: {choices: [sgd]}, momentum: {high: 0.6}}
"""
)


def test_derived_parameters_are_computed_where_what_they_are_made_of_exists():
    for trial in draw_trials(REPARAMETRISED, 100):
        assert ("learning_rate" in trial) == (trial["optimizer"] == "sgd")
        if trial["optimizer"] == "sgd":
            assert trial["learning_rate"] == pytest.approx(trial["effective_learning_rate"] * (1 - trial["momentum"]))


def test_forbidden_regions_are_left_out_and_the_rest_of_the_sequence_stays():
    free = REPARAMETRISED.model_copy(update={"forbidden": ()})
    allowed = [t for t in draw_trials(free, 300) if REPARAMETRISED.forbidden_region_of(t) is None]
    assert 100 < len(allowed) < 300
    drawn = list(draw_trials(REPARAMETRISED, 100))
    assert drawn == allowed[:100]
    assert list(draw_trials(REPARAMETRISED, 30, skip=40)) == drawn[40:70]
    assert all(t.get("momentum", 1) > 0.6 and t.get("learning_rate", 0) < 0.5 for t in drawn)


def test_a_space_that_is_forbidden_altogether_is_an_error():
    everything = Region(where={"effective_learning_rate": Bounds(low=1e-3)})
    with pytest.raises(AdvisorError, match="almost all of its space"):
        list(draw_trials(REPARAMETRISED.model_copy(update={"forbidden": (everything,)}), 1))


def test_a_formula_without_a_value_is_an_error():
    spec = parse_study_file(
        "study: s\nobjective: {metric: m, direction: minimize}\nparameters:\n  a: {choices: [0]}\n"
        "  b: {role: derived, formula: 1 / a}\n"
    )
    with pytest.raises(AdvisorError, match="'b' has no finite value: its formula is '1 / a'"):
        list(draw_trials(spec, 1))


@pytest.mark.parametrize("kind", ["halton", "random"])
def test_long_sequences_continue_across_blocks(kind):
    spec = SPEC.model_copy(update={"sampler": Sampler(kind=kind)})
    assert list(draw_trials(spec, 200, skip=400)) == list(draw_trials(spec, 600))[400:]


def test_a_study_that_searches_nothing_repeats_its_setting():
    spec = parse_study_file(
        "study: s\nobjective: {metric: m, direction: minimize}\nparameters:\n  a: {role: fixed, value: 1}\n"
    )
    assert list(draw_trials(spec, 2)) == [{"a": 1}, {"a": 1}]


def test_a_sequence_has_an_end():
    with pytest.raises(AdvisorError, match="1,000,000"):
        list(draw_trials(SPEC, 1, skip=10**20))


@pytest.mark.parametrize("number", [2, 3, 6, 7])
@pytest.mark.parametrize("seed", range(5))
def test_where_only_choices_are_searched_each_is_drawn_before_any_again(number, seed):
    spec = parse_study_file(
        f"study: s\nobjective: {{metric: m, direction: minimize}}\nparameters:\n  a: {{choices: {list(range(number))}}}"
    )
    spec = spec.model_copy(update={"sampler": Sampler(seed=seed)})
    for skip in (0, number, 1000 * number):
        assert sorted(t["a"] for t in draw_trials(spec, number, skip=skip)) == list(range(number))
    assert list(draw_trials(spec, 3, skip=number - 1)) == list(draw_trials(spec, number + 2))[-3:]
