from __future__ import annotations

import numpy as np
import pytest
from policy_studies import POINTS, learning, policy_study
from promise import kept, studies
from studies import verdict

from advisor.model.study import Study

RULE = "rollout-mismatch"


def study(start: float, end: float, trials: int = 3, seed: int = 0, scatter: float = 0.2) -> Study:
    """A mismatch that goes from `start` to `end` nats at a constant rate, with multiplicative noise."""
    rng = np.random.default_rng(seed)
    level = np.geomspace(start, end, POINTS)
    noise = [np.exp(scatter * rng.normal(size=POINTS) - scatter**2 / 2) for _ in range(trials)]
    return policy_study(
        [learning(rng) for _ in range(trials)], sampling__sampling_logp_difference__mean=[level * n for n in noise]
    )


def example() -> Study:
    """The engine keeps the weights of the first step."""
    return study(0.02, 3.0)


def test_a_mismatch_that_grows_points_to_old_weights() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert len(finding.trials) == 3
    assert "after each update" in finding.action
    assert [change.kind for change in finding.changes] == ["advise"]


def test_a_constant_mismatch_points_to_another_precision() -> None:
    (finding,) = verdict(RULE, study(0.4, 0.4)).findings
    assert "precision" in finding.action


def test_a_mismatch_that_falls_as_the_policy_becomes_sure_is_one_of_the_first_half() -> None:
    (finding,) = verdict(RULE, study(0.6, 0.1)).findings
    assert "In the first half" in finding.message
    assert "precision" in finding.action


@pytest.mark.parametrize(("start", "end"), [(0.003, 0.001), (0.02, 0.05), (0.15, 0.02), (0.2, 0.1)])
def test_quiet_if_the_engine_agrees(start: float, end: float) -> None:
    assert verdict(RULE, study(start, end)).status == "quiet"


@pytest.mark.parametrize("trials", [1, 4])
def test_keeps_its_promise_at_the_limit(trials: int) -> None:
    fired = [verdict(RULE, study(0.2, 0.2, trials, seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))
