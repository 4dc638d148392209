from __future__ import annotations

import numpy as np
import pytest
from policy_studies import POINTS, learning, policy_study
from promise import kept, studies
from studies import verdict

from advisor.model.change import Advise, FixParameter
from advisor.model.study import Study

RULE = "groups-without-advantage"
RARE = (0.01, 0.02)
"""Rewards at the start and the end if right answers are rare."""


def study(
    start: float,
    end: float,
    trials: int = 3,
    seed: int = 0,
    groups: int = 12,
    reward: tuple[float, float] = (0.3, 0.8),
    **params: int,
) -> Study:
    """A share of groups without advantage that goes from `start` to `end`, counted over `groups` groups a step."""
    rng = np.random.default_rng(seed)
    shares = [rng.binomial(groups, np.linspace(start, end, POINTS)) / groups for _ in range(trials)]
    rewards = [np.clip(learning(rng, *reward), 0.0, 1.0) for _ in range(trials)]
    return policy_study(rewards, params, frac_reward_zero_std=shares)


def example() -> Study:
    """Four fifths of the groups have no advantage from the start, because right answers are rare."""
    return study(0.85, 0.75, reward=RARE, num_generations=4, batch_size=48)


def test_fires_and_doubles_the_groups() -> None:
    made = example()
    (finding,) = verdict(RULE, made).findings
    assert len(finding.trials) == 3
    assert finding.confidence > 0.85
    advice, change = finding.changes
    assert isinstance(advice, Advise)
    assert isinstance(change, FixParameter)
    assert change.apply(made.spec).parameters["num_generations"].value == 8


@pytest.mark.parametrize(
    ("reward", "params"),
    [
        (RARE, {}),
        (RARE, {"num_generations": 4}),
        (RARE, {"num_generations": 4, "batch_size": 12}),
        ((0.95, 0.98), {"num_generations": 4, "batch_size": 48}),
    ],
    ids=["unknown groups", "unknown batch", "part of a group", "prompts that are too easy"],
)
def test_otherwise_it_only_advises(reward: tuple[float, float], params: dict[str, int]) -> None:
    (finding,) = verdict(RULE, study(0.8, 0.8, reward=reward, **params)).findings
    assert "completions" not in finding.action
    assert [change.kind for change in finding.changes] == ["advise"]


@pytest.mark.parametrize(("start", "end"), [(0.1, 0.3), (0.2, 1.0), (0.7, 0.1), (0.45, 0.45)])
def test_quiet_if_groups_have_an_advantage_at_first_or_later(start: float, end: float) -> None:
    assert verdict(RULE, study(start, end)).status == "quiet"


def test_quiet_if_only_a_poor_trial_is_without_advantage() -> None:
    rng = np.random.default_rng(1)
    shares = [np.full(POINTS, s) for s in (0.1, 0.1, 0.95)]
    rewards = [learning(rng), learning(rng), learning(rng, end=0.3)]
    assert verdict(RULE, policy_study(rewards, frac_reward_zero_std=shares)).status == "quiet"


@pytest.mark.parametrize("trials", [1, 4])
def test_keeps_its_promise_at_the_limit(trials: int) -> None:
    fired = [verdict(RULE, study(0.5, 0.5, trials, seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))
