from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter

RULE = "space-tuned-batch"


def study(params: Any, **more: Any) -> Any:
    return make_study(params, {"val/loss": [1.0 + 0.1 * (7 * i % 5) for i in range(len(params))]}, **more)


def sizes(*values: int) -> list[dict[str, Any]]:
    return [{"batch_size": b, "lr": 0.1} for b in values]


def example() -> Any:
    """Four batch sizes with one learning rate."""
    return study(sizes(32, 64, 128, 256))


def test_fires_fixes_the_size_and_searches_the_learning_rate() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert (finding.subject, finding.severity, finding.confidence) == ("batch_size", "warning", 1.0)


def test_the_numbers_of_rates_and_the_reason_for_the_size_are_said() -> None:
    more = [{"batch_size": 32, "lr": 0.2}, {"batch_size": 128, "lr": 0.2}, {"batch_size": 128, "lr": 0.4}]
    (finding,) = verdict(RULE, study(sizes(32, 64, 128, 256) + more)).findings
    assert "(32 to 256) were compared with 1 to 3 learning rates each." in str(finding.message)
    assert ", the largest among the best trials, and tune the learning rate for it." in str(finding.action)


def test_chooses_by_throughput_where_it_was_logged() -> None:
    speeds = [[100.0], [199.0], [390.0], [395.0]]
    made = make_study(sizes(32, 64, 128, 256), {"val/loss": [1.0] * 4, "train/examples_per_s": speeds})
    assert verdict(RULE, made).findings[0].changes[0].value == 128
    times = [[0.32], [0.32], [0.5], [1.0]]
    made = make_study(sizes(32, 64, 128, 256), {"val/loss": [1.0] * 4, "train/step_time_s": times})
    assert verdict(RULE, made).findings[0].changes[0].value == 128


def test_the_batch_size_is_the_one_that_the_throughput_asks_for() -> None:
    """A little more throughput at the largest size: both rules name the one before the plateau, in one study."""
    rng = np.random.default_rng(2)
    levels = (800.0, 1300.0, 1760.0, 1730.0, 1890.0)
    speeds = [level * np.exp(0.01 * rng.normal(size=100)) for level in levels]
    made = make_study(sizes(16, 32, 64, 128, 256), {"val/loss": [1.0] * 5, "train/examples_per_s": speeds})
    for rule in (RULE, "batch-throughput"):
        (finding,) = verdict(rule, made).findings
        assert [c.value for c in finding.changes if c.kind == "fix"] == [64], rule


def test_quiet_where_each_size_has_its_learning_rates() -> None:
    params = [{"batch_size": b, "lr": lr} for b in (32, 64, 128) for lr in (0.1, 0.2, 0.4)]
    assert verdict(RULE, study(params)).status == "quiet"
    rng = np.random.default_rng(0)
    sampled = [{"batch_size": int(2 ** rng.uniform(4, 8)), "lr": 10 ** rng.uniform(-4, -1)} for _ in range(40)]
    assert verdict(RULE, study(sampled)).status == "quiet"


def test_a_learning_rate_that_follows_the_size_is_not_tuned() -> None:
    for power in (0.5, 1.0):
        params = [{"batch_size": b, "lr": 0.01 * b**power} for b in range(16, 256, 8)]
        assert verdict(RULE, study(params)).status == "fired"


def test_other_optimizer_settings_count_without_a_learning_rate() -> None:
    params = [{"batch_size": b, "momentum": m} for b in (32, 64) for m in (0.8, 0.9, 0.95)]
    assert verdict(RULE, study(params)).status == "quiet"
    params = [{"batch_size": b, "dropout": d} for b in (32, 64) for d in (0.1, 0.2, 0.3)]
    assert verdict(RULE, study(params)).status == "fired"


def test_few_learning_rates_a_size_are_less_sure() -> None:
    params = [{"batch_size": b, "lr": lr} for b in (32, 64, 128) for lr in (0.1, 0.2)]
    params += [{"batch_size": 32, "lr": 0.4}]
    (finding,) = verdict(RULE, study(params)).findings
    assert finding.confidence == pytest.approx(2 / 3, abs=1e-3)
    assert "2 to 3 learning rates each" in finding.message


def test_quiet_on_one_batch_size_whatever_is_evaluated_with() -> None:
    params = [{"batch_size": 32, "eval_batch_size": 2**i, "lr": 0.1 + 0.1 * i} for i in range(4)]
    assert verdict(RULE, study(params)).status == "quiet"
    rates = [{"lr": 0.1 * i} for i in range(1, 4)]
    assert verdict(RULE, study(rates, tags=[{"batch_size": "32"}] * 3)).status == "quiet"


def test_cannot_tell_without_any_batch_size() -> None:
    assert "batch_size" in lacking(RULE, study([{"lr": 0.1}, {"lr": 0.2}]))


def test_trials_that_failed_or_run_break_nothing() -> None:
    made = study(sizes(32, 64, 128), status=["diverged", "infeasible", "complete"])
    assert verdict(RULE, made).status == "fired"
    space = {"batch_size": Parameter(type="int", low=8, high=64), "lr": Parameter(low=0.1, high=1.0)}
    assert verdict(RULE, study(sizes(32, 32), space=space)).status == "not-assessed"


def test_keeps_its_promise_over_random_studies_with_enough_learning_rates() -> None:
    rng = np.random.default_rng(1)
    fired = 0
    for _ in studies(200):
        batches = [2**k for k in range(4, 4 + int(rng.integers(2, 6)))]
        count = 8 * len(batches)
        params = [{"batch_size": int(rng.choice(batches)), "lr": 10 ** rng.uniform(-4, -1)} for _ in range(count)]
        fired += verdict(RULE, study(params)).status == "fired"
    assert fired == 0


def test_a_learning_rate_that_is_only_logged_is_added() -> None:
    """Otherwise the next study would train one setting many times."""
    params = [{"batch_size": b} for b in (32, 64, 128)]
    curves = {"val/loss": [1.0, 1.1, 1.2], "learning_rate": [[0.02] * 20] * 3}
    (finding,) = verdict(RULE, make_study(params, curves)).findings
    (added,) = (c for c in finding.changes if c.kind == "add")
    assert (added.name, added.parameter.low, added.parameter.high) == ("learning_rate", 0.002, 0.2)
    (finding,) = verdict(RULE, study(params)).findings
    assert [c.kind for c in finding.changes] == ["fix", "advise"]
