"""The rule `curve-saturated`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

N = 50
T = np.arange(1, N + 1) / N
RULE = "curve-saturated"


def study(curves, train=None, **options):
    metrics = {"val/loss": curves} | ({"train/loss": train} if train is not None else {})
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(len(curves))], metrics, **options)


def noisy(costs, size=0.002, seed=0):
    return costs + np.random.default_rng(seed).normal(0, size, N)


def settling(at=0.3, seed=0):
    return noisy(np.maximum(1 - T / at, 0) + 1, seed=seed)


def example():
    return study([settling(0.3, 0), settling(0.25, 1), settling(0.2, 2)])


def test_fires_and_names_a_number_of_steps():
    (finding,) = verdict(RULE, example()).findings
    assert len(finding.trials) == 3
    spec = finding.changes[0].apply(example().spec)
    assert 1400 <= spec.max_train_steps <= 2200
    assert finding.changes[1].apply(spec).notes


def test_training_cost_must_be_flat_too():
    flat_too = verdict(RULE, study([settling()], [settling(0.25, 5)]))
    assert "training and validation" in flat_too.findings[0].message
    assert verdict(RULE, study([settling()], [noisy(2 - 1.5 * T)])).status == "quiet"


def test_the_slower_of_both_curves_sets_the_number():
    alone = verdict(RULE, study([settling(0.2)])).findings[0].changes[0].value
    both = verdict(RULE, study([settling(0.2)], [settling(0.4, 5)])).findings[0].changes[0].value
    assert both > 1.3 * alone


def test_quiet_on_curves_that_fall_rise_or_settle_late():
    for curve in (2 - T, 1 + np.exp(-3 * T), settling(0.85), settling(0.2) + 0.4 * np.maximum(T - 0.3, 0)):
        assert verdict(RULE, study([noisy(curve)])).status == "quiet"


def test_noise_makes_it_quiet():
    assert verdict(RULE, study([noisy(settling(), 0.15)])).status == "quiet"


def test_cannot_tell_where_the_learning_rate_vanished():
    curves = [settling()]
    rates = 0.1 * np.where(T < 0.3, 1.0, 1e-4)
    starved = make_study([{"lr": 0.1}], {"val/loss": curves, "train/learning_rate": [rates]})
    constant = make_study([{"lr": 0.1}], {"val/loss": curves, "train/learning_rate": [np.full(N, 0.1)]})
    assert "half the length" in verdict(RULE, starved).reason
    assert verdict(RULE, constant).status == "fired"


def test_shortens_the_stretch_before_the_decay_and_keeps_the_decay():
    rates = np.minimum(1, (1.02 - T) / 0.2)
    curves = [settling(0.2) - 0.3 * np.maximum(T - 0.82, 0) / 0.18]
    (finding,) = verdict(RULE, make_study([{"lr": 0.1}], {"val/loss": curves, "train/learning_rate": [rates]})).findings
    assert 0.4 * 5000 <= finding.changes[0].value <= 0.55 * 5000
    assert "keep the decay" in finding.changes[0].why


def test_cannot_tell_without_learning_or_evaluations():
    assert verdict(RULE, study([np.ones(N)])).status == "not-assessed"
    assert verdict(RULE, study([[2.0, 1.0]])).status == "not-assessed"


@pytest.mark.parametrize("shape", ["power", "line", "drop"])
def test_keeps_its_promise_on_curves_that_fall_to_the_end(shape):
    rng = np.random.default_rng(7)
    fired = 0
    for _ in studies(150):
        curves = []
        for _ in range(3):
            clean = {"power": (200 * T + 1) ** -rng.uniform(0.1, 0.5), "line": 1 - rng.uniform(0.5, 1) * T}.get(shape)
            if clean is None:
                clean = 0.5 * np.exp(-T / 0.05) + 0.3 * np.cos(np.pi * T / 2)
            curves.append(clean + rng.normal(0, rng.choice([0.003, 0.02]), N))
        fired += verdict(RULE, study(curves)).status == "fired"
    assert fired <= scaled(0.05 * 150, of=150)


def plateau(levels):
    """Trials that stop at nearly the same value after 2 % of the steps."""
    steps = np.arange(1, 101)
    curves = [np.where(steps < 3, 2.0, level) + np.random.default_rng(i).normal(0, 1e-4, 100) for i, level in enumerate(levels)]
    return study(curves)


def test_a_plateau_that_different_settings_share_is_not_cut_off():
    (finding,) = verdict(RULE, plateau([1.0, 1.0001, 1.0002])).findings
    assert [c.kind for c in finding.changes] == ["advise"]
    assert "Different settings stay at the same value" in finding.message
    missing = verdict("steps-compute-bound", plateau([1.0, 1.0001, 1.0002]))
    assert "stuck on a plateau" in missing.reason


def test_settings_that_differ_beyond_noise_share_no_plateau():
    (finding,) = verdict(RULE, plateau([1.0, 1.02, 1.04])).findings
    assert finding.changes[0].kind != "advise"


def test_a_gain_larger_than_the_lead_and_the_noise_is_not_cut_off():
    rng, drifts = np.random.default_rng(1), np.zeros((2, N))
    for drift in drifts:
        for k in range(1, N):
            drift[k] = 0.7 * drift[k - 1] + rng.normal(0, 0.003)
    curves = [np.maximum(1 - T / 0.2, 0) + 1 + drift for drift in drifts]
    (finding,) = verdict(RULE, study(curves)).findings
    assert [c.kind for c in finding.changes] == ["advise"]
    assert "leads the second best by" in finding.message


def test_a_single_value_per_trial_is_no_decay():
    params = [{"lr": 0.1 * (i + 1), "lr_schedule": "const"} for i in range(4)]
    curves = {"val/loss": [[1.0 + i] for i in range(4)]}
    result = verdict("curve-saturated", make_study(params, curves, steps={"val/loss": [[0]] * 4}))
    assert result.status == "not-assessed"
    assert "a single value of val/loss, which is no curve" in result.reason


def test_cannot_tell_from_trials_that_early_results_selected():
    curves = [settling(seed=i) for i in range(3)] + [settling(seed=9)[:5]] * 7
    pruned = study(curves, status=["complete"] * 3 + ["pruned"] * 7)
    result = verdict("curve-saturated", pruned)
    assert (result.status, "were pruned" in result.reason) == ("not-assessed", True)
