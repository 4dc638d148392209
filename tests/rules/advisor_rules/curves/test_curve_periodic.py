"""The rule `curve-periodic`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

N = 120
RULE = "curve-periodic"
EVERY = 100
EPOCH = {"steps_per_epoch": "800"}


def noise(seed, correlation=0.3, n=N):
    e = np.random.default_rng(seed).normal(0, 0.02, n)
    for i in range(1, n):
        e[i] += correlation * e[i - 1]
    return e


def calm(seed=0, n=N, correlation=0.3):
    return 1 + 2 * np.exp(-np.arange(n) / (0.1 * n)) + noise(seed, correlation, n)


def periodic(seed=0, period=8.0, size=0.06):
    return calm(seed) + size * np.sin(2 * np.pi * np.arange(N) / period)


def study(curves, facts=None, **options):
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(curves))]
    curves = {"val/loss": curves, **options.pop("more", {})}
    return make_study(params, curves, tags=[facts or {}] * len(params), every=EVERY, **options)


def example():
    return study([periodic(0), calm(1) + 0.1, calm(2) + 0.1], EPOCH)


def test_fires_on_the_period_of_an_epoch_and_asks_to_look_at_the_data():
    (finding,) = verdict(RULE, example()).findings
    assert finding.goal == "pipeline"
    assert finding.severity == "warning"
    assert finding.subject == "val/loss"
    assert finding.confidence > 0.95
    assert "one epoch" in finding.message
    assert finding.trials == ("run0",)
    (change,) = finding.changes
    assert change.apply(study([calm()]).spec).notes == (change.text,)


def test_any_other_period_must_be_shared_by_most_trials():
    (finding,) = verdict(RULE, study([periodic(i, 15.5) for i in range(3)])).findings
    assert finding.severity == "note"
    assert finding.confidence < 0.81
    assert len(finding.trials) == 3
    assert "1,5" in finding.message
    assert verdict(RULE, study([periodic(0, 15.5), *(calm(i) + 0.1 for i in range(1, 5))])).status == "quiet"


def test_waves_within_an_epoch_and_a_period_that_shows_slower_than_it_is():
    (two,) = verdict(RULE, study([periodic(0, 8.0)], {"steps_per_epoch": "1600"})).findings
    assert two.severity == "warning"
    (slower,) = verdict(RULE, study([periodic(0, 8.0)], {"steps_per_epoch": str(100 * 8 / 9)})).findings
    assert "evaluation interval" in slower.message


def test_says_what_the_loader_was_seen_to_do():
    (off,) = verdict(RULE, study([periodic()], {**EPOCH, "shuffle": "false"})).findings
    assert "shuffle" in off.message
    assert "shuffle" in off.action
    (on,) = verdict(RULE, study([periodic()], {**EPOCH, "shuffle": "true"})).findings
    assert "validation examples" in on.action


def test_a_jagged_wave_in_the_validation_loss_beside_a_calm_objective():
    saw = calm(0) + 0.15 * ((np.arange(N) / 8.0) % 1)
    both = make_study(
        [{"lr": 0.1}],
        {"val/accuracy": [1 - 0.3 * calm(1)], "val/loss": [saw]},
        objective="val/accuracy",
        direction="maximize",
        tags=[EPOCH],
        every=EVERY,
    )
    (finding,) = verdict(RULE, both).findings
    assert finding.subject == "val/loss"


def test_quiet_on_curves_without_a_period():
    assert verdict(RULE, study([calm(0), calm(1)], EPOCH)).status == "quiet"
    assert verdict(RULE, study([np.full(N, 0.5), calm(1)], EPOCH)).status == "quiet"


def test_a_schedule_that_goes_up_and_down_explains_a_period():
    rates = {"train/learning_rate": [0.1 * (1 + np.cos(np.pi * (np.arange(N) / 8 % 1)))]}
    assert verdict(RULE, study([periodic()], EPOCH, more=rates)).status == "not-assessed"
    assert verdict(RULE, study([periodic()], {**EPOCH, "schedule": '{"kind": "cyclic"}'})).status == "not-assessed"
    once = {"train/learning_rate": [0.1 * np.minimum(np.arange(N) / 10, 1.0)]}
    assert verdict(RULE, study([periodic()], EPOCH, more=once)).status == "fired"


def test_momentum_explains_a_fast_swing():
    heavy = {"optimizer.momentum": "0.99"}
    assert verdict(RULE, study([periodic(0, 10.0)], heavy)).status == "quiet"
    assert verdict(RULE, study([periodic(0, 10.0)], {**heavy, "steps_per_epoch": "1000"})).status == "fired"
    params = [{"lr": 0.1, "one_minus_momentum": 0.01}]
    assert verdict(RULE, make_study(params, {"val/loss": [periodic(0, 10.0)]}, every=EVERY)).status == "quiet"


def test_cannot_tell_from_few_or_irregular_evaluations():
    assert "32 times at regular steps" in verdict(RULE, study([calm(n=20)])).reason
    steps = np.cumsum(np.random.default_rng(0).integers(20, 200, N))
    assert verdict(RULE, study([periodic()], EPOCH, steps=steps)).status == "not-assessed"


def test_says_that_one_evaluation_an_epoch_cannot_show_it():
    assert "an epoch takes 100" in verdict(RULE, study([calm()], {"steps_per_epoch": "100"})).reason


@pytest.mark.parametrize("facts", [{}, EPOCH])
@pytest.mark.parametrize(
    ("trials", "n", "correlation", "shape"),
    [
        (1, 120, 0.0, "normal"),
        (3, 60, 0.8, "normal"),
        (5, 120, 0.5, "heavy"),
        (1, 300, 0.0, "rounded"),
        (1, 120, 1.0, "normal"),
    ],
)
def test_keeps_its_promise_on_nulls(facts, trials, n, correlation, shape):
    fired = 0
    for k in studies(150):
        curves = [calm(1000 * k + i, n, correlation) for i in range(trials)]
        if shape == "heavy":
            curves = [c + 0.02 * np.random.default_rng(k).standard_t(2, n) for c in curves]
        if shape == "rounded":
            curves = [np.round(c, 1) for c in curves]
        fired += verdict(RULE, study(curves, facts)).status == "fired"
    assert fired <= scaled(0.02 * 150 + 2 * np.sqrt(150 * 0.02 * 0.98), of=150)
