"""curve-overfitting: validation that rises while training falls."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.spec import Parameter

RULE = "curve-overfitting"
T = np.linspace(0, 1, 40)
RNG = np.random.default_rng(0)


def valley(rise=0.5, noise=0.01, rng=RNG):
    return 1 + np.where(T < 0.4, 3 * (0.4 - T) ** 2, rise * (T - 0.4)) + noise * rng.standard_normal(len(T))


def decay(level=1.0, noise=0.01, rng=RNG):
    return level + np.exp(-6 * T) + noise * rng.standard_normal(len(T))


def study(valid, train, params=None, **kwargs):
    curves = {"val/loss": valid, "train/loss": train} if train is not None else {"val/loss": valid}
    return make_study(params or [{"lr": 10.0 ** -(i + 1)} for i in range(len(valid))], curves, **kwargs)


def example():
    rng = np.random.default_rng(0)
    valid = [valley(rng=rng), decay(1.2, rng=rng), valley(0.3, rng=rng) + 0.2, decay(1.5, rng=rng)]
    return study(valid, [decay(0, rng=rng) for _ in range(4)])


def test_a_single_run_that_overfits():
    shown = study([valley()], [decay(0)])
    (finding,) = verdict(RULE, shown).findings
    assert finding.severity == "warning"
    assert finding.confidence > 0.95
    assert "train/loss" in finding.message
    added, steps = finding.changes
    spec = added.apply(shown.spec)
    assert spec.parameters["dropout"].options == (0.0, 0.1, 0.3)
    assert spec.parameters["dropout"].role == "scientific"
    assert "steps again" in steps.text


def test_a_fine_tuned_model_trains_for_fewer_epochs():
    facts = {"pretrained": "true", "steps_per_epoch": "1000"}
    (finding,) = verdict(RULE, study([valley()], [decay(0)], tags=[facts])).findings
    (change,) = finding.changes
    assert change.field == "max_train_steps"
    assert 1000 <= change.value <= 2000  # the best of the 4,000 steps is step 1,600
    assert str(finding.action).startswith(
        f"Fine-tune for fewer epochs: {change.value:,} steps ({change.value / 1000:.2g} epochs)"
    )


def test_a_regulariser_that_is_kept_fixed_is_compared_with_none():
    space = {"lr": Parameter(low=0.001, high=0.1), "weight_decay": Parameter(role="fixed", value=0.02)}
    shown = study([valley()] * 2, [decay(0)] * 2, [{"lr": 0.1, "weight_decay": 0.02}] * 2, space=space)
    added = verdict(RULE, shown).findings[0].changes[0]
    assert (added.name, added.parameter.options) == ("weight_decay", (0.0, 0.02, 0.06))


def test_one_of_several_regularisers_changes():
    params = [{"dropout": 0.1 + 0.1 * i, "weight_decay": 0.02 - 0.005 * i} for i in range(4)]
    space = {"dropout": Parameter(low=0.1, high=0.4), "weight_decay": Parameter(low=0.005, high=0.02)}
    shown = study([valley(rng=np.random.default_rng(i)) + i for i in range(4)], [decay(0)] * 4, params, space=space)
    change, _ = verdict(RULE, shown).findings[0].changes
    assert (change.parameter, change.low) == ("weight_decay", 0.0)


def test_a_searched_regulariser_gets_room_upwards():
    params = [{"lr": 0.1, "weight_decay": 10.0 ** -(i + 3)} for i in range(4)]
    space = {"weight_decay": Parameter(low=1e-6, high=1e-3, scale="log"), "lr": Parameter(role="fixed", value=0.1)}
    shown = study([valley() for _ in range(4)], [decay(0) for _ in range(4)], params, space=space)
    (finding,) = verdict(RULE, shown).findings
    change, _ = finding.changes
    assert (change.kind, change.low, change.scale) == ("set-range", 1e-6, "log")
    assert change.high == pytest.approx(1e-2)
    assert change.apply(shown.spec).parameters["weight_decay"].high == pytest.approx(1e-2)


def test_dropout_stays_below_one():
    params = [{"dropout": d} for d in (0.7, 0.5, 0.1)]
    space = {"dropout": Parameter(low=0.0, high=0.7)}
    (finding,) = verdict(RULE, study([valley()] * 3, [decay(0)] * 3, params, space=space)).findings
    assert finding.changes[0].high < 1


def test_another_trial_than_the_best():
    said = verdict(RULE, study([decay(0.5), decay(0.6), valley()], [decay(0)] * 3))
    assert said.findings[0].severity == "note"
    assert said.findings[0].trials == ("run2",)
    assert "1 of 3" in said.findings[0].message


def test_the_best_trial_of_each_scientific_setting_leads():
    space = {"depth": Parameter(role="scientific", choices=(2, 4)), "lr": Parameter(low=0.01, high=1.0, scale="log")}
    params = [{"depth": d, "lr": 0.1} for d in (2, 2, 4, 4)]
    said = verdict(RULE, study([decay(0.1), decay(0.2), valley(), decay(3)], [decay(0)] * 4, params, space=space))
    assert said.findings[0].severity == "warning"
    assert "trial-2" in said.findings[0].message


def test_a_scientific_regulariser_whose_low_settings_overfit():
    params = [{"dropout": d} for d in (0.0, 0.1, 0.4, 0.5)]
    valid, train = [valley(), valley(), decay(1), decay(1)], [decay(0)] * 4
    for role, status in (("scientific", "quiet"), ("nuisance", "fired")):
        space = {"dropout": Parameter(role=role, low=0.0, high=0.5)}
        assert verdict(RULE, study(valid, train, params, space=space)).status == status


def test_training_that_gets_worse_is_instability():
    assert verdict(RULE, study([valley()], [valley()])).status == "not-assessed"  # it counts as diverged


def test_a_loss_that_rises_while_accuracy_does_not_is_a_note():
    curves = {"val/accuracy": [1 - decay(0.1)], "val/loss": [valley()], "train/loss": [decay(0)]}
    said = verdict(RULE, make_study([{"lr": 0.1}], curves, objective="val/accuracy", direction="maximize"))
    assert said.findings[0].severity == "note"
    assert said.findings[0].subject == "val/loss"
    assert "val/accuracy" in said.findings[0].message


def test_without_training_it_is_less_sure():
    (finding,) = verdict(RULE, study([valley()], None)).findings
    assert finding.confidence <= 0.6


def test_it_cannot_tell_from_few_evaluations():
    said = verdict(RULE, study([[1.0, 0.5, 2.0]], [[1.0, 0.5, 0.1]]))
    assert said.status == "not-assessed"
    assert "6 evaluations" in said.reason
    nothing = study([decay()], [decay()], status=["diverged"])
    assert verdict(RULE, nothing).status == "not-assessed"


def test_it_keeps_its_promise():
    rng = np.random.default_rng(5)
    fired = 0
    for _ in studies(200):
        count = int(rng.integers(1, 6))
        # Noise that persists from one evaluation to the next, over a curve that falls and flattens.
        drift = np.convolve(rng.standard_normal(45), [1, 0.5, 0.25], mode="valid")[:40]
        valid = [decay(rng.uniform(0, 1), 0.05, rng) + 0.02 * drift for _ in range(count)]
        fired += verdict(RULE, study(valid, [decay(0, 0.01, rng) for _ in range(count)])).status == "fired"
    assert fired <= scaled(10, of=200)


def test_a_trial_at_chance_has_nothing_to_lose():
    stuck = 0.693 + 1e-4 * (valley() - 1)
    best = decay(0.1)
    assert verdict(RULE, study([best, stuck], [decay(0)] * 2)).status == "quiet"
    assert verdict(RULE, study([stuck], [decay(0)])).status == "fired"


def test_a_policy_that_gets_worse_does_not_overfit():
    t = np.arange(50)
    rewards = 200 * (1 - np.exp(-t / 8)) - np.where(t > 30, 8.0 * (t - 30), 0) + np.random.default_rng(0).normal(0, 2, 50)
    made = make_study([{"lr": 0.1}], {"episode_reward": [rewards]}, objective="episode_reward", direction="maximize")
    said = verdict("curve-overfitting", made)
    assert said.status == "not-assessed"
    assert "policy" in said.reason


def few(rng, evaluations, *, rise):
    """Return twenty fine-tunings with few evaluations each. All but one overfit."""
    t = np.arange(1, evaluations + 1) / evaluations
    valid, train = [], []
    for i in range(20):
        climb = rise * np.maximum(t - 0.4, 0) * (i != 7)
        valid.append(0.45 + 0.1 * np.exp(-5 * t) + climb + 0.012 * rng.normal(size=evaluations))
        train.append(0.7 * np.exp(-3 * t) + 0.01 * rng.normal(size=evaluations))
    return study(valid, train)


@pytest.mark.parametrize("evaluations", [3, 4, 6, 10])
def test_many_trials_with_few_evaluations_overfit_together(evaluations):
    (finding,) = verdict(RULE, few(np.random.default_rng(1), evaluations, rise=0.3)).findings
    assert finding.severity in ("warning", "note")
    assert finding.confidence > 0.9
    assert "train/loss still improves" in finding.message


def test_few_evaluations_that_level_off_show_no_overfitting():
    rng = np.random.default_rng(2)
    fired = sum(verdict(RULE, few(rng, 3 + i % 4, rise=0.0)).status == "fired" for i in studies(100))
    assert fired <= scaled(5, of=100)


def test_trials_whose_training_gets_worse_as_well_do_not_overfit():
    rng = np.random.default_rng(3)
    worse = [[1.0, 0.5 + 0.01 * rng.normal(), 0.8] for _ in range(20)]
    assert verdict(RULE, study(worse, worse)).status == "quiet"


def test_few_trials_with_few_evaluations_cannot_tell():
    assert "evaluate more often" in verdict(RULE, study([[1.0, 0.5, 0.6]] * 3, [[1.0, 0.5, 0.1]] * 3)).reason


def test_a_regulariser_with_which_overfitting_grows_is_not_widened():
    rises = [0.05 * (i + 1) for i in range(8)]
    params = [{"weight_decay": 0.001 * (i + 1)} for i in range(8)]
    curves = [np.concatenate([np.linspace(1.0, 0.5, 10), np.linspace(0.5, 0.5 + r, 10)]) for r in rises]
    space = {"weight_decay": Parameter(low=0.001, high=0.01, scale="log")}
    change, _ = verdict(RULE, study(curves, [decay(0)] * 8, params, space=space)).findings[0].changes
    assert change.name == "dropout"


def test_a_regulariser_of_which_more_was_tried_is_not_widened():
    """The best trial has weak regularisation and overfits; the range already reaches strong one."""
    params = [{"weight_decay": 10.0 ** -(6 - i)} for i in range(5)]
    space = {"weight_decay": Parameter(low=1e-7, high=1.0, scale="log")}
    shown = study([valley() + 0.1 * i for i in range(5)], [decay(0)] * 5, params, space=space)
    change, _ = verdict(RULE, shown).findings[0].changes
    assert (change.name, change.parameter.options) == ("dropout", (0.0, 0.1, 0.3))


def test_a_regulariser_that_many_trials_show_to_be_of_no_use_is_not_widened():
    rng = np.random.default_rng(5)
    params = [{"weight_decay": 10.0 ** -(4 - 0.2 * i)} for i in range(12)]
    space = {"weight_decay": Parameter(low=1e-4, high=1e-1, scale="log")}
    # The best trial has the strongest decay, but all overfit alike.
    shown = study([valley(rng=rng) - 0.01 * i for i in range(12)], [decay(0)] * 12, params, space=space)
    change, _ = verdict(RULE, shown).findings[0].changes
    assert change.name == "dropout"


@pytest.mark.parametrize(("most", "high"), [(0.09, 0.4), (0.35, None)])
def test_dropout_that_was_only_weak_gets_its_usual_range_although_it_showed_no_use(most, high):
    params = [{"dropout": most * (i + 1) / 12} for i in range(12)]
    rng = np.random.default_rng(0)
    shown = study(
        [valley(rng=rng) + 0.01 * i for i in range(12)],
        [decay(0, rng=rng) for _ in range(12)],
        params,
        space={"dropout": Parameter(low=0.0, high=most)},
    )
    change = verdict(RULE, shown).findings[0].changes[0]
    assert getattr(change, "high", None) == high
    if high is not None:
        assert (change.parameter, change.low) == ("dropout", 0.0)


def test_the_point_is_where_the_metric_of_most_trials_is_best():
    rng = np.random.default_rng(8)
    valid = [np.array([0.45, 0.55, 0.8]) + 0.02 * rng.normal(size=3) for _ in range(20)]
    valid[3] = np.array([0.6, 0.55, 0.8])
    train = [np.array([0.5, 0.2, 0.1]) for _ in range(20)]
    (finding,) = verdict("curve-overfitting", study(valid, train)).findings
    assert "worse than after 33 % of the training" in finding.message
