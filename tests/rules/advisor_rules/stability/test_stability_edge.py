"""The rule `stability-edge`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.change import RunPlan, SetRange
from advisor.planning import plan


def sweep(rates: Any, best: int, failing: int, kind: str = "diverged", name: str = "learning_rate") -> Any:
    """The `failing` highest rates fail early; the best is the trial at index `best`. Trains for 10,000 steps."""
    fine = len(rates) - failing
    end = 1.5 if kind == "infeasible" else np.nan
    curves = [[3.0, 2.9, 2.8, 2.0, 1 + 0.1 * abs(i - best)] for i in range(fine)]
    curves += [[3.0, 3.5, end, end, end]] * failing
    status = ["complete"] * fine + [kind] * failing
    steps = [1, 100, 500, 5000, 10000]
    return make_study([{name: float(r)} for r in rates], {"val/loss": curves}, status=status, steps=steps)


HALF_DECADES = 10.0 ** np.arange(-5, 0, 0.5)


def example() -> Any:
    return sweep(HALF_DECADES, 6, 3)


def test_fires_and_asks_for_warmup_before_a_higher_rate() -> None:
    study = example()
    (finding,) = verdict("stability-edge", study).findings
    assert (finding.subject, finding.goal, finding.severity) == ("learning_rate", "stability", "critical")
    warmup, rate = finding.changes
    assert isinstance(warmup, RunPlan)
    assert (warmup.plan, warmup.numbers) == ("warmup", {"unstable_learning_rate": pytest.approx(HALF_DECADES[7]), "times": 10})
    assert isinstance(rate, SetRange)
    higher = rate.apply(study.spec).parameters["learning_rate"]
    assert higher.high == pytest.approx(10 * HALF_DECADES[7], rel=1e-2)
    assert higher.low is not None
    assert higher.low < HALF_DECADES[6]


def test_where_losses_are_too_sparse_it_asks_to_look_at_the_start() -> None:
    curves = [[3.0, 2.0, 1 + 0.1 * abs(i - 6)] for i in range(7)] + [[3.0, 2.5, np.nan]] * 3
    status = ["complete"] * 7 + ["diverged"] * 3
    params = [{"learning_rate": float(r)} for r in HALF_DECADES]
    study = make_study(params, {"val/loss": curves}, status=status, steps=[100, 5000, 10000])
    result = verdict("stability-edge", study)
    ((change,),) = (f.changes for f in result.findings)
    assert isinstance(change, RunPlan)
    assert change.plan == "probe-early"
    (spec,) = plan(study, [result]).specs
    assert (spec.probe, spec.max_train_steps, spec.evaluate_every, spec.trials) == ("early-instability", 500, 1, 1)
    assert spec.parameters["learning_rate"].value == pytest.approx(2 * HALF_DECADES[6])
    assert spec.baseline is not None
    assert spec.baseline.max_train_steps == 10_000


def test_with_a_decade_between_the_best_and_the_failing_rate_it_asks_for_rates_between() -> None:
    decades = 10.0 ** np.arange(-6, 1)
    result = verdict("stability-edge", sweep(decades, 4, 2))
    assert result.status == "not-assessed"
    assert "needs more trials between 0.01 and 0.1" in result.reason
    assert verdict("stability-edge", sweep(decades**2, 4, 2)).status == "quiet"


@pytest.mark.parametrize("best", [-0.6, -1.2])
def test_quiet_if_results_turn_before_the_edge(best: float) -> None:
    logs = np.linspace(-3, 1, 24)
    costs = 1 + 0.3 * (logs - best) ** 2 + 0.002 * np.random.default_rng(0).standard_normal(24)
    curves = [[3.0, float(c) if x < -0.2 else np.nan] for x, c in zip(logs, costs, strict=True)]
    params = [{"lr": float(10**x)} for x in logs]
    status = ["complete" if x < -0.2 else "diverged" for x in logs]
    assert verdict("stability-edge", make_study(params, {"val/loss": curves}, status=status)).status == "quiet"


def test_one_failure_in_five_is_enough_if_the_best_is_next_to_it() -> None:
    assert verdict("stability-edge", sweep(HALF_DECADES[:5], 3, 1)).status == "fired"
    assert verdict("stability-edge", sweep(HALF_DECADES[:4], 2, 1)).status == "quiet"


def test_trials_that_learn_nothing_are_unstable_too() -> None:
    curves = [[-0.1, -0.9 - 0.01 * i] for i in range(6)] + [[-0.1, -0.1]] * 3
    study = make_study([{"lr": float(r)} for r in HALF_DECADES[:9]], {"val/loss": curves})
    assert verdict("stability-edge", study).status == "fired"


@pytest.mark.parametrize(("best", "failing"), [(2, 3), (9, 0), (4, 0)])
def test_quiet_far_from_the_edge_or_without_one(best: int, failing: int) -> None:
    assert verdict("stability-edge", sweep(HALF_DECADES, best, failing)).status == "quiet"


def test_running_out_of_memory_is_no_instability() -> None:
    assert verdict("stability-edge", sweep(HALF_DECADES, 6, 3, kind="infeasible")).status == "quiet"


def test_cannot_tell_without_a_learning_rate_or_a_result() -> None:
    assert verdict("stability-edge", sweep(HALF_DECADES, 6, 3, name="width")).status == "not-assessed"
    assert verdict("stability-edge", sweep(HALF_DECADES, 0, 10)).status == "not-assessed"
    assert verdict("stability-edge", make_study([{"lr": 0.1}], {"val/loss": [[1.0]]})).status == "not-assessed"


def test_keeps_its_promise() -> None:
    rng = np.random.default_rng(5)
    fired = 0
    for i in studies(200):
        n, m = (8, 2) if i % 2 else (14, 4)
        status = rng.permutation(["diverged"] * m + ["complete"] * (n - m)).tolist()
        params = [{"lr": float(r)} for r in 10 ** rng.uniform(-5, -1, n)]
        curves = [[3.0, np.nan if s == "diverged" else float(rng.random())] for s in status]
        fired += verdict("stability-edge", make_study(params, {"val/loss": curves}, status=status)).status == "fired"
    assert fired <= scaled(0.08 * 200, of=200)


def test_the_same_in_any_order() -> None:
    order = np.random.default_rng(0).permutation(10)
    rates = HALF_DECADES[order]
    curves = [[3.0, np.nan] if i >= 7 else [3.0, 1 + 0.1 * abs(i - 6)] for i in order]
    status = ["diverged" if i >= 7 else "complete" for i in order]
    mixed = make_study([{"learning_rate": float(r)} for r in rates], {"val/loss": curves}, status=status)
    (one,), (other,) = (verdict("stability-edge", study).findings for study in (mixed, example()))
    assert (one.message, one.confidence) == (other.message, other.confidence)


@pytest.mark.parametrize("seed", range(4))
def test_with_momentum_the_best_must_be_near_the_failures_by_the_length_of_a_step(seed: int) -> None:
    """The best trial's momentum is low, so its steps are short; rates up to there are untried."""
    rng = np.random.default_rng(seed)
    rates = [*10.0 ** np.linspace(-2.5, -0.6, 10), 0.6, 1.9, 2.0, 2.2]
    near = [*rng.uniform(0.6, 0.8, 10), 0.6, 0.62, 0.65, 0.61]
    far = [*rng.uniform(0.6, 0.8, 10), 0.6, 0.9, 0.93, 0.95]
    fine = len(rates) - 3
    for momenta, status in ((near, "fired"), (far, "not-assessed")):
        params = [{"learning_rate": float(r), "momentum": float(m)} for r, m in zip(rates, momenta, strict=True)]
        curves = [[3.0, 2.9, 2.8, 2.0, 1 + 0.1 * (fine - i)] for i in range(fine)]
        study = make_study(
            params,
            {"val/loss": curves + [[3.0, 3.5, np.nan, np.nan, np.nan]] * 3},
            status=["complete"] * fine + ["diverged"] * 3,
            steps=[1, 100, 500, 5000, 10000],
        )
        assert verdict("stability-edge", study).status == status
