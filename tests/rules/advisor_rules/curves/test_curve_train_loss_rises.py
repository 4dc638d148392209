"""The rule `curve-train-loss-rises`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

N = 60
T = np.arange(1, N + 1) / N
RULE = "curve-train-loss-rises"


def noise(seed, size=0.02, correlation=0.0, n=N):
    e = np.random.default_rng(seed).normal(0, size, n)
    for i in range(1, n):
        e[i] += correlation * e[i - 1]
    return e


def falling(seed=0):
    return 0.3 + 2 * np.exp(-T / 0.1) + noise(seed)


def rising(seed=0, by=0.8):
    return falling(seed) + by * np.maximum(T - 0.4, 0) / 0.6


def study(training, validation=None, **options):
    validation = validation or [1 + np.exp(-T / 0.1) + 0.01 * i + noise(100 + i, 0.01) for i in range(len(training))]
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(training))]
    curves = {"train/loss": training, "val/loss": validation, **options.pop("more", {})}
    return make_study(params, curves, **options)


def example():
    return study([rising(0), rising(1), falling(2)])


def test_fires_and_asks_to_look_for_the_bug():
    (finding,) = verdict(RULE, example()).findings
    assert finding.goal == "pipeline"
    assert finding.severity == "warning"
    assert finding.subject == "train/loss"
    assert finding.confidence > 0.95
    assert finding.trials == ("run0", "run1")
    (change,) = finding.changes
    assert change.apply(study([rising()]).spec).notes == (change.text,)


def test_a_single_run_is_enough_and_one_that_ends_above_its_start_is_critical():
    (finding,) = verdict(RULE, study([rising(0, by=4.0)])).findings
    assert finding.severity == "critical"


def test_the_evaluated_training_loss_counts_too():
    more = {"train_eval/loss": [rising()]}
    (finding,) = verdict(RULE, study([falling()], more=more)).findings
    assert finding.subject == "train_eval/loss"


def test_quiet_where_the_loss_falls_levels_off_or_trembles_near_zero():
    assert verdict(RULE, study([falling(0), falling(1)])).status == "quiet"
    assert verdict(RULE, study([2 * np.exp(-T / 0.1) + 1e-4 * T + noise(0, 1e-6)])).status == "quiet"


def test_quiet_where_only_a_poor_trial_rises():
    validation = [1 + np.exp(-T / 0.1), 3 + np.exp(-T / 0.1)]
    assert verdict(RULE, study([falling(), rising()], validation)).status == "quiet"


def test_a_divergence_is_none():
    lost = rising()
    lost[50:] = np.nan
    good = falling()
    assert verdict(RULE, study([lost, good], status=["diverged", "complete"])).status == "quiet"
    infinite = rising(by=3)
    infinite[-1] = np.inf
    assert verdict(RULE, study([infinite])).status == "quiet"


def test_a_jump_is_for_stability():
    jump = falling() + 1.0 * (T > 0.6)
    assert verdict(RULE, study([jump])).status == "quiet"
    hurt = [1 + np.exp(-T / 0.1) + 0.5 * (T > 0.6) + noise(100, 0.01)]
    assert verdict("stability-mid", study([jump], hurt)).status == "fired"


def test_a_start_that_blew_up_is_for_stability():
    blown = 0.9 + 8 * np.exp(-(((T - 0.05) / 0.03) ** 2)) + 0.3 * T + noise(0)
    assert verdict(RULE, study([blown])).status == "quiet"


def test_a_raised_learning_rate_explains_it():
    rates = {"train/learning_rate": [np.where(T < 0.4, 0.01, 0.1)]}
    assert verdict(RULE, study([rising()], more=rates)).status == "quiet"
    rates = {"train/learning_rate": [0.1 * (1 - T)]}
    assert verdict(RULE, study([rising()], more=rates)).status == "fired"


def test_is_not_called_overfitting():
    worse = [1 + np.exp(-T / 0.1) + 0.5 * np.maximum(T - 0.4, 0) + noise(9, 0.01)]
    assert verdict("curve-overfitting", study([rising()], worse)).status == "quiet"
    assert verdict(RULE, study([rising()], worse)).status == "fired"


def test_cannot_tell_without_a_training_loss():
    nothing = make_study([{"lr": 0.1}], {"val/loss": [falling()]})
    assert "log train/loss" in verdict(RULE, nothing).reason
    assert verdict(RULE, study([[2.0, 1.0, 0.5]], [[2.0, 1.0, 0.5]])).status == "not-assessed"
    dead = study([[np.nan] * 3], [[np.nan] * 3], status=["diverged"])
    assert verdict(RULE, dead).status == "not-assessed"


@pytest.mark.parametrize(
    ("trials", "n", "correlation", "shape"),
    [(1, 60, 0.0, "flat"), (1, 30, 0.5, "flat"), (5, 60, 0.5, "falls"), (5, 200, 0.8, "falls"), (8, 60, 0.0, "ties")],
)
def test_keeps_its_promise_on_nulls(trials, n, correlation, shape):
    rng = np.random.default_rng(n)
    t = np.arange(1, n + 1) / n
    course = 1 + (0 if shape == "flat" else np.exp(-t / 0.1))
    fired = 0
    for k in studies(200):
        curves = [course + noise(1000 * k + i, 0.05, correlation, n) for i in range(trials)]
        if shape == "ties":
            curves = [np.round(c, 1) for c in curves]
        best = [course + 0.1 * rng.normal() + 0 * c for c in curves]
        fired += verdict(RULE, study(curves, best)).status == "fired"
    assert fired <= scaled(0.05 * 200 + 2 * np.sqrt(200 * 0.05 * 0.95), of=200)


def test_the_loss_of_a_policy_need_not_fall():
    t = np.arange(60)
    rng = np.random.default_rng(0)
    made = make_study(
        [{"lr": 0.1}],
        {
            "episode_reward": [200 * (1 - np.exp(-t / 8)) + rng.normal(0, 2, 60)],
            "train/loss": [1 + 0.05 * t + 0.02 * rng.normal(size=60)],
        },
        objective="episode_reward",
        direction="maximize",
    )
    assert verdict("curve-train-loss-rises", made).status == "not-assessed"
    assert verdict("stability-early", made).status == "not-assessed"
    assert verdict("stability-mid", made).status == "quiet"


def test_a_note_where_evaluations_go_on_improving():
    better = 0.5 + 2 * np.exp(-T / 0.5) + noise(7, 0.005)
    (finding,) = verdict(RULE, study([rising(0, by=4.0)], [better])).findings
    assert finding.severity == "note"
    assert "val/loss" in finding.message
    assert "augmentation" in finding.action


def test_a_self_supervised_loss_need_not_fall():
    rng = np.random.default_rng(0)
    t = np.arange(200)
    losses = [1 + 0.002 * t + 0.02 * rng.normal(size=200) for _ in range(6)]
    probes = [0.3 + 0.4 * (1 - np.exp(-t / 40)) + 0.004 * rng.normal(size=200) for _ in range(6)]
    made = make_study(
        [{"lr": 0.1 / (i + 1)} for i in range(6)],
        {"probe_acc": probes, "train_loss": losses},
        objective="probe_acc",
        direction="maximize",
    )
    assert verdict(RULE, made).status == "not-assessed"
    assert verdict("stability-early", made).status == "quiet"
    assert verdict("stability-mid", made).status == "quiet"
