"""The rule `curve-still-improving`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

N = 40
T = np.arange(1, N + 1) / N
RULE = "curve-still-improving"


def study(curves, **options):
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(len(curves))], {"val/loss": curves}, **options)


def noisy(costs, size=0.005, seed=0):
    return costs + np.random.default_rng(seed).normal(0, size, N)


def falling(seed=0):
    return noisy(0.5 + 1.5 / (1 + 2 * T) - 0.02 * seed, seed=seed)


def flat(seed=0, size=0.01):
    return noisy(1 + np.exp(-T / 0.05), size, seed)


def example():
    return study([falling(0), falling(1), falling(2)])


def test_fires_and_asks_for_longer_training():
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "warning"
    assert finding.confidence > 0.95
    assert len(finding.trials) >= 2
    assert "step 4,000" in finding.message
    field = finding.changes[0]
    assert field.kind == "set-field"
    spec = field.apply(study([falling()]).spec)
    assert 1.5 * 4000 <= spec.max_train_steps <= 3 * 4000
    assert finding.changes[1].apply(spec).notes


def test_a_single_run_is_enough():
    assert str(verdict(RULE, study([falling()])).findings[0].message).startswith("The best trial still improves")


def test_the_longer_a_curve_levels_off_the_fewer_steps_it_asks_for():
    slow = verdict(RULE, study([noisy(np.exp(-4 * T), 1e-4)])).findings[0]
    straight = verdict(RULE, study([falling()])).findings[0]
    assert slow.changes[0].value < straight.changes[0].value


def test_counts_from_the_planned_steps():
    tags = [{"max_train_steps": "4100"}]
    assert "4,100" in verdict(RULE, study([falling()], tags=tags)).findings[0].action


def test_quiet_on_flat_rising_and_immaterial_curves():
    assert verdict(RULE, study([flat()])).status == "quiet"
    assert verdict(RULE, study([noisy(1 + np.exp(-T / 0.05) + 0.2 * T)])).status == "quiet"
    assert verdict(RULE, study([noisy(100 * np.exp(-T / 0.03) - 0.1 * T, 0.001)])).status == "quiet"


def test_quiet_where_only_a_poor_trial_still_improves():
    assert verdict(RULE, study([flat(), falling() + 3])).status == "quiet"


def test_trials_that_were_cut_short_are_no_evidence():
    stopped = study([falling(0), falling(1)], status=["stopped", "stopped"])
    assert verdict(RULE, stopped).status == "not-assessed"
    early = study([falling()], tags=[{"max_train_steps": "10000"}])
    assert "cut short" in verdict(RULE, early).reason


def test_cannot_tell_from_few_evaluations_or_none():
    assert "evaluations" in verdict(RULE, study([[3.0, 2.0, 1.0]])).reason
    assert verdict(RULE, study([[np.nan] * 5, [1.0]], status=["diverged", "infeasible"])).status == "not-assessed"


def test_gaps_and_infinities_in_the_curve_do_not_break_it():
    curve = falling()
    curve[[3, 20, 33]] = np.nan, np.inf, -np.inf
    assert verdict(RULE, study([curve])).status == "fired"


@pytest.mark.parametrize(("trials", "correlation"), [(1, 0.0), (5, 0.0), (5, 0.5)])
def test_keeps_its_promise_on_flat_curves(trials, correlation):
    rng = np.random.default_rng(trials)
    fired = 0
    for _ in studies(150):
        noise = rng.normal(0, 0.02, (trials, N))
        for i in range(1, N):
            noise[:, i] += correlation * noise[:, i - 1]
        fired += verdict_status(list(1 + np.exp(-T / 0.05) + noise)) == "fired"
    assert fired <= scaled(0.05 * 150 + 2 * np.sqrt(150 * 0.05 * 0.95), of=150)


def with_rates(curves, rates):
    metrics = {"val/loss": curves, "train/learning_rate": [rates] * len(curves)}
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(len(curves))], metrics)


def test_a_constant_rate_is_kept_over_the_extra_steps():
    assert "stretch a cosine decay" in verdict(RULE, example()).findings[0].changes[1].text
    constant = verdict(RULE, with_rates([falling(0), falling(1)], np.ones(N))).findings[0]
    assert constant.changes[1].text.startswith("Keep the learning rate constant")


@pytest.mark.parametrize(
    ("params", "rates", "words"),
    [
        ({"weight_decay": 0.1}, None, "a constant learning rate: none was logged."),
        ({"exponential_decay": 1e-6}, None, "the learning rate hardly falls; the effect of exponential_decay on it is"),
        ({}, np.ones(N // 4), "a constant learning rate: the logged rates do not cover the training."),
    ],
)
def test_says_what_it_assumes_about_an_unknown_schedule(params, rates, words):
    metrics = {"val/loss": [falling()]} | ({} if rates is None else {"train/learning_rate": [rates]})
    (finding,) = verdict(RULE, make_study([{"lr": 0.1, **params}], metrics)).findings
    assert words in str(finding.message)


def test_a_decay_hides_whether_longer_training_helps():
    for rates in (1 - T, (1 + np.cos(np.pi * T)) / 2, np.where(T < 0.4, 1.0, 0.1)):
        result = verdict(RULE, with_rates([falling(0), falling(1)], rates))
        assert result.status == "not-assessed"
        assert "half the length" in result.reason
    declared = make_study([{"lr": 0.1, "lr_scheduler_type": "cosine"}], {"val/loss": [falling()]})
    assert "half the length" in verdict(RULE, declared).reason


def test_reads_the_stretch_before_the_decay():
    stable = np.minimum(1, (1.02 - T) / 0.2)
    settled = 1 + np.exp(-T / 0.05) - 0.5 * np.maximum(T - 0.8, 0) / 0.2
    assert verdict(RULE, with_rates([noisy(settled)], stable)).status == "quiet"
    (finding,) = verdict(RULE, with_rates([falling()], stable)).findings
    assert "before its learning rate decays" in finding.message


def test_an_unknown_schedule_that_bends_most_trials_late_cannot_be_told():
    bent = [noisy(1 + np.exp(-T / 0.05) - 0.5 * np.maximum(T - 0.8, 0) / 0.2, seed=i) for i in range(3)]
    assert "log the learning rate" in verdict(RULE, study(bent)).reason
    constant = make_study([{"lr": 0.1, "lr_scheduler": "constant"}] * 3, {"val/loss": bent})
    assert verdict(RULE, constant).status == "fired"


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_compares_trials_of_two_lengths_under_any_schedule(gain):
    rng = np.random.default_rng(0)
    params = [{"lr": lr, "max_steps": steps, "scheduler": "cosine"} for lr in (0.1, 0.2) for steps in (2000, 4000)]
    curves = [
        1 + np.exp(-np.arange(1, n + 1) / 2) - gain * (n == N) + rng.normal(0, 0.005, n) for _ in range(2) for n in (N // 2, N)
    ]
    result = verdict(RULE, make_study(params, {"val/loss": curves}))
    assert result.status == ("fired" if gain else "quiet")
    if gain:
        assert "2 times as long" in result.findings[0].message


def test_forecasts_stay_within_what_the_metric_can_reach():
    near = verdict(RULE, study([noisy(1.01 - T, 0.001)])).findings[0]
    assert "90 % interval 0 to" in near.message
    accuracy = verdict(RULE, study([noisy(0.1 + 0.89 * T, 0.001)], direction="maximize")).findings[0]
    assert "to 1)" in accuracy.message


def verdict_status(curves):
    return verdict(RULE, study(curves)).status
