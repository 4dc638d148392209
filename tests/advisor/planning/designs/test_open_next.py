"""After a learning rate that is known well enough, the next hyperparameter of the optimizer is searched with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planning_studies import assert_ready_to_run
from studies import make_study

from advisor.computed.pipeline.ties import reason_settings_tie
from advisor.model.prediction import BestNear, Prediction
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning import plan
from advisor.planning.base import initial_draft
from advisor.planning.designs.open_next import equal_rates_reason, search_next_hyperparameter

RATES = np.geomspace(1e-3, 10, 9)


def sweep(best: float = 0.1, rates: Any = RATES, **constants: Any) -> Study:
    """A sweep of the learning rate; each decade away from the best one costs 0.3."""
    params = [{"lr": float(r), **constants} for r in rates]
    ends = 0.5 + 0.3 * np.abs(np.log10(rates / best))
    space = {
        "lr": Parameter(low=float(rates[0]), high=float(rates[-1]), scale="log"),
        **{n: Parameter(role="fixed", value=v) for n, v in constants.items()},
    }
    return make_study(params, {"val/loss": [[2.0, 1.0, e] for e in ends]}, space=space)


def opened(study: Study) -> StudySpec | None:
    return search_next_hyperparameter(study, initial_draft(study))


@pytest.mark.parametrize(("now", "lowest"), [(0.9, 0.5), (0.99, 0.9)])
def test_momentum_is_searched_with_rates_as_high_as_less_of_it_needs(now: float, lowest: float) -> None:
    spec = opened(sweep(momentum=now))
    momentum, rate = spec.parameters["momentum"], spec.parameters["lr"]
    assert (momentum.low, momentum.high) == (lowest, 0.99)
    assert rate.high >= 0.99 * 0.1 * (1 - lowest) / (1 - now)
    assert rate.contains(0.1 * (1 - 0.99) / (1 - now))
    assert spec.goal == f"Tune momentum: {lowest} to 0.99"
    assert_ready_to_run(spec)


def test_the_trials_with_much_momentum_do_not_exclude_the_rates_that_less_of_it_needs() -> None:
    (spec, *_) = plan(sweep(best=3e-3, rates=np.geomspace(1e-5, 1, 16), momentum=0.99), []).specs
    momentum, rate = spec.parameters["momentum"], spec.parameters["lr"]
    assert rate.contains(0.99 * 3e-3 * 0.1 / (1 - 0.99))
    assert "Lower momentum needs a higher lr" in momentum.why


def test_the_plan_of_a_quiet_sweep_has_it() -> None:
    (spec, *_) = plan(sweep(beta1=0.9), []).specs
    assert spec.searched.keys() == {"lr", "beta1"}


@pytest.mark.parametrize(
    "study",
    [sweep(momentum=0.0), sweep(), sweep(best=1e-3, momentum=0.9), sweep(rates=np.geomspace(1e-5, 1e4, 4), momentum=0.9)],
    ids=["plain SGD", "nothing to add", "the best rate is the lowest", "rates far apart"],
)
def test_it_waits_for_a_known_rate_and_something_to_add(study: Study) -> None:
    assert opened(study) is None


@pytest.mark.parametrize(("optimizer", "name"), [("sgd", "momentum"), ("adamw", "beta1")])
def test_the_hyperparameter_is_one_of_the_optimizer(optimizer: str, name: str) -> None:
    spec = opened(sweep(momentum=0.9, beta1=0.9, optimizer=optimizer))
    assert spec.searched.keys() == {"lr", name}


def noisy_rates(costs: Any, falls: float, rates: Any, seed: int = 1) -> Study:
    """Trials that end at `costs`, from a first evaluation that is higher by `falls`; the noise of an evaluation is 0.002."""
    rng = np.random.default_rng(seed)
    curves = [end + falls * np.exp(-np.arange(20) / 2) + 0.002 * rng.standard_normal(20) for end in costs]
    space = {
        "lr": Parameter(low=float(rates[0]), high=float(rates[-1]), scale="log"),
        "beta1": Parameter(role="fixed", value=0.9),
    }
    return make_study([{"lr": float(r), "beta1": 0.9} for r in rates], {"val/loss": curves}, space=space)


def is_flat(study: Study) -> bool:
    return equal_rates_reason(study, initial_draft(study)) != ""


def test_rates_at_which_nothing_was_learned_are_no_flat_range() -> None:
    rates = np.geomspace(1e-8, 1e-6, 8)
    assert is_flat(noisy_rates(np.full(8, 3.0), 1.0, rates))
    assert sum(is_flat(noisy_rates(np.full(8, 3.0), 0.0, rates, seed)) for seed in range(50)) <= 3


def test_a_trend_that_no_pair_of_results_shows_is_no_flat_range() -> None:
    rates = np.geomspace(1e-4, 1e-2, 10)
    equal, rising = (
        [noisy_rates(1 + size * np.linspace(0, 1, 10), 1.0, rates, seed) for seed in range(30)] for size in (0, 0.004)
    )
    assert sum(map(is_flat, equal)) >= 24
    assert sum(reason_settings_tie(s) is not None for s in rising) >= 20
    assert sum(map(is_flat, rising)) <= 8


@pytest.mark.parametrize(("slope", "flat"), [(0.0, True), (0.3, False)])
def test_rates_that_tie_within_noise_end_the_search(slope: float, flat: bool) -> None:
    rates = np.geomspace(3e-3, 5e-2, 5)
    study = noisy_rates(1.2 + slope * np.abs(np.log10(rates / rates[2])), 1.0, rates)
    near = Prediction(rule="law", subject="lr", expects=BestNear(parameter="lr", value=0.01))
    study = replace(study, spec=study.spec.model_copy(update={"predictions": (near,)}))
    (spec,) = plan(study, []).specs
    assert (spec.searched.keys() == {"lr", "beta1"}) != flat
    reason = "All tried values of lr, 0.003 to 0.05, give the same result within noise, so the predicted 0.01 is as good as any"
    assert (spec.goal.startswith("Stop searching lr and repeat the best setting: 5 seeds")) == flat
    assert (spec.parameters["lr"].why == reason) == flat
    assert any(reason in note for note in spec.notes) == flat
    assert_ready_to_run(spec)


def test_the_new_range_ends_at_the_nearest_rates_that_are_worse_beyond_noise() -> None:
    rates = np.geomspace(1e-3, 1e-1, 17)
    sure = opened(noisy_rates(1 + 3 * np.abs(np.log10(rates / rates[8])), 1.0, rates))
    blurred = opened(noisy_rates(1 + 0.03 * np.abs(np.log10(rates / rates[8])), 1.0, rates))
    near, wide = sure.parameters["lr"], blurred.parameters["lr"]
    assert near.low == pytest.approx(rates[7], rel=0.01)
    assert near.high == pytest.approx(rates[9], rel=0.01)
    assert wide.low < 0.99 * rates[7]
    assert wide.high > 1.01 * rates[9]
