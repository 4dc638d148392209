"""The stretch at a constant learning rate."""

import json
import math

import numpy as np
import pytest
from studies import make_study

from advisor.computed.steps import schedules

T = np.arange(1, 101) / 100


def until(rates=None, params=None, tags=None):
    metrics = {"val/loss": [2 - T]} | ({"train/learning_rate": [rates]} if rates is not None else {})
    shown = make_study([{"lr": 0.1} | (params or {})], metrics, tags=[tags or {}])
    return schedules.read_schedule(shown, shown.trials[0]).last_peak_step(10_000)


def test_logged_rates_show_the_stretch_after_the_warmup():
    assert until(np.minimum(1, T / 0.1)) == 10_000
    assert until(np.minimum(T / 0.05, np.minimum(1, (1 - T) / 0.25))) == pytest.approx(7500, abs=100)
    assert until(np.where(T < 0.6, 1.0, 0.1)) == pytest.approx(6000, abs=100)
    assert until((1 + np.cos(np.pi * T)) / 2) < 1000
    assert until(1 - 0.05 * T) == 10_000


def test_declared_schedules():
    assert until(params={"lr_scheduler_type": "constant_with_warmup"}) == 10_000
    for declared in ({"lr_scheduler_type": "cosine"}, {"schedule": "piecewise_constant"}, {"lr_decay": "linear"}):
        assert until(params=declared) == 0
    assert until(tags={"schedule": json.dumps({"kind": "warmup+linear"})}) == 0


@pytest.mark.parametrize(
    "name", ["cosine_decay_fraction", "linear_decay_steps", "lr_schedule.cosine_epochs", "warmdown_iters", "cooldown_frac"]
)
def test_the_length_of_a_schedule_or_of_its_final_phase_says_that_the_rate_decays(name):
    assert until(params={name: 0.75}) == 0
    assert math.isnan(until(params={name: 0}))


def test_rates_of_the_first_steps_only_show_no_schedule():
    """A warmup that was logged only at its beginning ends at its highest rate."""
    cost, rates = [1.0, 0.8, 0.7, 0.6], list(range(100))
    made = make_study(
        [{"lr": 0.1}],
        {"val/loss": [cost], "lr": [rates]},
        steps={"val/loss": [[1000, 2000, 3000, 4000]], "lr": [list(range(100))]},
    )
    shown = schedules.read_schedule(made, made.trials[0])
    assert not len(shown.rates)
    assert shown.is_constant is None


def test_rates_by_epoch_beside_losses_by_step_show_the_schedule():
    made = make_study(
        [{"lr": 0.1}],
        {"val/loss": [[1.0, 0.8, 0.7, 0.6]], "lr": [[0.1] * 10]},
        steps={"val/loss": [[1000, 2000, 3000, 4000]], "lr": [list(range(10))]},
        times={"val/loss": [[10.0, 20.0, 30.0, 40.0]], "lr": [[4.0 * i for i in range(10)]]},
    )
    assert schedules.read_schedule(made, made.trials[0]).is_constant


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"weight_decay": 0.1, "decay": "fast"},
        {"weight_decay": 0.1, "linear_momentum_decay": 0.9, "ema_decay": 0.99, "exponential_decay": 1e-6},
    ],
)
def test_without_a_word_on_the_schedule_it_is_unknown(params):
    assert math.isnan(until(params=params))


@pytest.mark.parametrize("value", ["const", "constant", "constant_with_warmup"])
def test_a_constant_schedule_has_several_names(value):
    study = make_study([{"lr_schedule": value, "lr": 0.1}], {"val/loss": [[2.0, 1.0]]})
    assert schedules.read_schedule(study, study.trials[0]).is_constant


def test_says_how_far_the_learning_rate_was_logged():
    curves = {"val/loss": [np.linspace(2, 1, 10)], "train/learning_rate": [np.linspace(0, 1e-4, 100)]}
    steps = {"val/loss": [np.arange(10) * 1000], "train/learning_rate": [np.arange(100)]}
    study = make_study([{"lr": 0.1}], curves, steps=steps)
    assert schedules.reason_schedule_unknown(study, study.trials).endswith("up to step 99 only, far from the end of training")
    study = make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]], "train/learning_rate": [[0.1]]})
    assert "logged more than 1 learning rate, and a schedule needs 5" in schedules.reason_schedule_unknown(study, study.trials)
