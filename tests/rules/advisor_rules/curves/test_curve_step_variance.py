"""curve-step-variance: the order of the best trials is the luck of the step."""

import re
from dataclasses import replace

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor_rules.curves.curve_step_variance import find_noise_remedy, p_of_independent_jumps

RULE = "curve-step-variance"
T = np.linspace(0, 1, 60)


def curve(rng, level=1.0, noise=0.1):
    return level + np.exp(-8 * T) + noise * rng.standard_normal(len(T))


def study(valid, **curves):
    logged = {"val/loss": valid} | {k.replace("_", "/", 1): v for k, v in curves.items()}
    return make_study([{"x": float(i)} for i in range(len(valid))], logged)


def equal_trials(seed=0, count=8, **kwargs):
    rng = np.random.default_rng(seed)
    return [curve(rng, **kwargs) for _ in range(count)]


def example():
    return first_firing(train_learning_rate=[[0.1] * 60] * 8)[0]


def test_equal_trials_are_ranked_by_luck():
    fired = [verdict(RULE, study(equal_trials(seed))) for seed in range(20)]
    assert sum(v.status == "fired" for v in fired) >= 15
    finding = next(v for v in fired if v.status == "fired").findings[0]
    assert finding.severity == "warning"
    assert finding.subject == "val/loss"
    assert len(finding.trials) == 5


def accuracies(seed, noise=0.002, levels=(0.96,) * 8):
    rng = np.random.default_rng(seed)
    valid = [level - 0.4 * np.exp(-8 * T) + noise * rng.standard_normal(len(T)) for level in levels]
    params = [{"x": float(i)} for i in range(len(valid))]
    made = make_study(params, {"val_acc": valid}, objective="val_acc", direction="maximize")
    return verdict(RULE, made).findings


def test_settings_are_equally_good_if_noise_hides_no_difference_worth_its_cost():
    finding = next(f for seed in range(20) for f in accuracies(seed))
    assert finding.action == "Take any of the 5 best settings, such as the cheapest one: they are equally good within noise."
    assert (finding.severity, finding.goal) == ("note", "exploitation")
    assert [c.kind for c in finding.changes] == ["advise", "repeat-trial"]
    assert "no setting was repeated" in str(finding.message)
    assert finding.confidence > 0.9


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_an_accuracy_in_percent_counts_from_0_as_a_share_does(unit):
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        valid = [unit * (0.96 - 0.05 * np.exp(-8 * T) + 0.004 * rng.standard_normal(len(T))) for _ in range(8)]
        params = [{"x": float(i)} for i in range(len(valid))]
        found += verdict(RULE, make_study(params, {"val_acc": valid}, objective="val_acc", direction="maximize")).findings
    assert found
    assert {f.severity for f in found} == {"note"}


def test_a_poorer_setting_does_not_count_as_equally_good():
    levels = (0.96,) * 4 + (0.94,)
    found = [f for seed in range(20) for f in accuracies(seed, noise=0.01, levels=levels) if f.severity == "note"]
    assert found
    assert not any("run4" in f.trials for f in found)


def test_noise_that_hides_a_worthwhile_difference_is_a_warning():
    finding = next(f for seed in range(20) for f in accuracies(seed, noise=0.05))
    assert finding.severity == "warning"
    assert "validation" in str(finding.action)


def test_equally_good_settings_differ_by_no_more_than_the_bound():
    rng, wrong, claims = np.random.default_rng(11), 0, 0
    for seed in studies(100):
        levels = 0.96 + 0.001 * rng.standard_normal(5)
        for finding in accuracies(int(seed), levels=levels):
            claims += 1
            wrong += np.ptp(levels) > float(re.search(r"at most ([\d.]+)", str(finding.message)).group(1).rstrip("."))
    assert claims > 0
    assert wrong <= max(0.05 * claims, 2)


def test_a_single_high_value_is_no_gain_of_training():
    findings = [f for seed in range(20) for f in verdict(RULE, study([np.append(1e6, c) for c in equal_trials(seed)])).findings]
    assert findings
    assert {f.severity for f in findings} == {"warning"}


def test_the_order_of_fewer_settings_than_hyperparameters_is_a_mere_note():
    rng = np.random.default_rng(0)
    names = [f"p{i}" for i in range(12)]
    params = [{n: float(rng.uniform()) for n in names} for _ in range(8)]
    made = make_study(params, {"val/loss": [curve(rng) for _ in params]})
    assert [f.severity for f in verdict("curve-step-variance", made).findings] == ["note"]


def first_firing(**curves):
    for seed in range(20):
        shown = study(equal_trials(seed), **curves)
        said = verdict(RULE, shown)
        if said.findings:
            return shown, said.findings[0]
    raise AssertionError("never fired")


def test_a_constant_learning_rate_gets_a_decay():
    shown, finding = first_firing(train_learning_rate=[[0.1] * 60] * 8)
    assert finding.changes[0].apply(shown.spec).schedule == {"kind": "cosine"}


def test_a_decayed_one_does_not():
    _, finding = first_firing(train_learning_rate=[np.linspace(0.1, 0, 60)] * 8)
    assert finding.changes[0].kind == "advise"
    assert finding.action == "Repeat the best settings with several seeds, or use more validation data."
    assert "log the learning rate" not in str(finding.evidence)
    assert "decay the learning rate" in first_firing()[1].action


@pytest.mark.parametrize(("floor", "most", "least"), [(0.0, 1, 0), (1.0, 20, 10)])
def test_the_noise_counts_at_the_end_of_a_decay(floor, most, least):
    """floor: noise at a learning rate of zero, as a share of that at its peak."""
    rate = (1 + np.cos(np.pi * T)) / 2
    fired = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sd = 0.05 * np.maximum(rate, floor)
        spread = 0.005 * (1 - floor)
        levels = 1 + spread * rng.standard_normal(5)
        valid = [level + np.exp(-4 * T) + sd * rng.standard_normal(len(T)) for level in levels]
        fired += verdict(RULE, study(valid, train_learning_rate=[0.1 * rate] * 5)).status == "fired"
    assert least <= fired <= most


def test_training_that_does_not_jump_along_blames_the_validation_set():
    _, finding = first_firing(train_loss=[np.exp(-T) + 1e-3 * np.random.default_rng(9).standard_normal(60)] * 8)
    assert re.match(r"Evaluate on about \d+ times as many validation examples, or compare the means of", str(finding.action))
    assert finding.changes[0].new_scores


def test_a_policy_is_evaluated_over_more_episodes():
    shown, _ = first_firing(train_loss=[np.exp(-T) + 1e-3 * np.random.default_rng(9).standard_normal(60)] * 8)
    policies = replace(shown, kind="reinforcement-learning")
    change, cause = find_noise_remedy(policies, policies.ranked()[:5], constant=0.5, examples=3.0)
    assert "3 times as many episodes" in change.text
    assert "episodes" in cause


def test_a_set_that_would_be_too_large_is_not_advised():
    shown, _ = first_firing(train_loss=[np.exp(-T) + 1e-3 * np.random.default_rng(9).standard_normal(60)] * 8)
    change, _ = find_noise_remedy(shown, shown.ranked()[:5], constant=0.5, examples=101.0)
    assert "no realistic number of validation examples" in change.text
    assert not change.new_scores


def test_training_that_jumps_along_blames_the_model():
    for seed in range(20):
        valid = equal_trials(seed)
        said = verdict(RULE, study(valid, train_loss=[0.5 * v for v in valid]))
        if said.findings:
            assert "Average the weights" in said.findings[0].action
            return
    raise AssertionError("never fired")


def test_distinct_trials_are_fine():
    rng = np.random.default_rng(1)
    assert verdict(RULE, study([curve(rng, i, 0.1) for i in range(5)])).status == "quiet"


def test_seeds_that_differ_more_than_steps_are_fine():
    rng = np.random.default_rng(2)
    valid = [curve(rng, 1 + 0.05 * rng.standard_normal(), 0.001) for _ in range(8)]
    assert verdict(RULE, study(valid)).status == "quiet"


@pytest.mark.parametrize(("noise", "status"), [(0.002, "quiet"), (0.1, "fired")])
def test_a_single_trial(noise, status):
    said = verdict(RULE, study([curve(np.random.default_rng(3), noise=noise)]))
    assert said.status == status
    if said.findings:
        assert said.findings[0].severity == "note"


def test_it_cannot_tell():
    assert verdict(RULE, study([[1.0, 0.5, 0.4]] * 2)).status == "not-assessed"
    flat = 1 + 0.1 * np.random.default_rng(4).standard_normal(60)
    assert "does not end better" in verdict(RULE, study([flat])).reason


@pytest.mark.parametrize("same", [np.exp(-T), np.full(60, 0.5), curve(np.random.default_rng(7))])
def test_trials_with_the_same_result_have_no_order(same):
    said = verdict(RULE, study([same] * 12))
    assert said.status == "not-assessed"
    assert "uses the hyperparameters" in said.reason


def test_trials_without_noise_are_no_luck():
    assert verdict(RULE, study([np.exp(-T) + 1e-6 * i for i in range(5)])).status == "quiet"


def test_a_best_first_evaluation_is_no_gain():
    said = verdict(RULE, study([[0.1, *(1 + np.exp(-5 * T) + 0.01 * np.random.default_rng(5).standard_normal(60))]]))
    assert said.status == "not-assessed"


def test_it_keeps_its_promise():
    rng = np.random.default_rng(6)
    fired = 0
    for _ in studies(200):
        noise = rng.uniform(0, 0.1)
        fired += verdict(RULE, study([curve(rng, 4 * noise * i, noise) for i in range(6)])).status == "fired"
    assert fired <= scaled(10, of=200)


def test_extreme_values_break_nothing():
    assert verdict(RULE, study([[1e99, -1e99] * 20, [0.0, 1e-99] * 20])).status != "broken"
    for size in (1e99, 1e308):
        assert verdict(RULE, study([[size, -size] * 20])).status in ("quiet", "fired", "not-assessed")
    assert verdict(RULE, study([[1e308, -1e308] * 20, [0.0] * 40])).status == "not-assessed"  # one trial is left


def test_other_seeds_of_a_setting_are_no_rivals():
    rng = np.random.default_rng(0)
    valid = [curve(rng, level) for level in (1.0, 1.0, 1.0, 2.0, 2.5, 3.0)]
    repeated = make_study([{"x": x} for x in (1.0, 1.0, 1.0, 2.0, 3.0, 4.0)], {"val/loss": valid})
    assert verdict(RULE, repeated).status == "quiet"
    assert verdict(RULE, make_study([{"x": 1.0}] * 3, {"val/loss": equal_trials(3, count=3)})).status != "not-assessed"


def scores(ends):
    curves = [np.append(np.linspace(0.2, 0.5, 59), end) for end in ends]
    params = [{"x": float(i)} for i in range(len(ends))]
    return make_study(params, {"success_rate": curves}, objective="success_rate", direction="maximize")


@pytest.mark.parametrize(
    ("ends", "advice"),
    [
        ([1.0] * 6 + [0.9], "evaluate on harder examples"),
        ([0.9] * 6 + [0.8], "evaluate on more examples"),
        ([0.9] * 6, "check that the training uses the hyperparameters"),
    ],
)
def test_the_remedy_of_equal_results_depends_on_why_they_are_equal(ends, advice):
    assert advice in verdict(RULE, scores(ends)).reason


def test_whether_two_curves_jump_together():
    rng = np.random.default_rng(3)
    a = rng.standard_normal(60)
    assert p_of_independent_jumps(a, a + 0.3 * rng.standard_normal(60)) < 0.001
    assert p_of_independent_jumps(a, rng.standard_normal(60)) > 0.01
    assert np.isnan(p_of_independent_jumps(a, np.zeros(60)))
