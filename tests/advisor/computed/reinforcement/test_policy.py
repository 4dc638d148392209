from __future__ import annotations

import numpy as np
import pytest
from policy_studies import learning, policy_study
from studies import make_study

from advisor.computed.reinforcement.policy import LoggedSignal, initial_and_late_reward, logged_signals
from advisor.model.finding import MissingData
from advisor.model.study import Signal


def test_trials_come_best_first() -> None:
    rng = np.random.default_rng(0)
    study = policy_study([learning(rng, end=0.5), learning(rng, end=0.9), learning(rng, points=100)])
    assert logged_signals(study, "policy_reward")[0].trial.id == "run1"
    assert len(logged_signals(study, "policy_reward")) == 3


def test_parts_have_two_points_or_more() -> None:
    study = policy_study([learning(np.random.default_rng(0))])
    (entry,) = logged_signals(study, "policy_reward")
    assert isinstance(entry, LoggedSignal)
    assert entry.slice_of_points(0.0, 0.2) == slice(0, 20)
    assert entry.slice_of_points(0.8, 1.0) == slice(80, 100)
    assert entry.slice_of_points(0.0, 0.001) == slice(0, 2)


def test_the_need_tells_a_policy_from_another_training() -> None:
    with pytest.raises(MissingData) as missing:
        logged_signals(make_study([{"lr": 0.1}], {"val/loss": [[2.0, 1.0]]}), "policy_kl")
    assert missing.value.needs.lack == "design"
    with pytest.raises(MissingData) as missing:
        logged_signals(policy_study([learning(np.random.default_rng(0))]), "policy_kl")
    assert missing.value.needs.lack == "other"


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        ("completions_truncated", "completions/clipped_ratio"),
        ("policy_entropy", "TRL's entropy"),
        ("groups_without_advantage", "frac_reward_zero_std"),
        ("policy_kl", "TRL's kl"),
        ("rollout_mismatch", "sampling_logp_difference"),
    ],
)
def test_a_missing_signal_is_named_as_trl_logs_it(signal: Signal, words: str) -> None:
    with pytest.raises(MissingData, match=words):
        logged_signals(policy_study([learning(np.random.default_rng(0))] * 2), signal)


def test_too_few_points_are_counted() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(MissingData, match="the longest curve has 16, so log more often, in TRL by logging_steps=1"):
        logged_signals(policy_study([learning(rng, points=16), learning(rng, points=15)]), "policy_reward")


@pytest.mark.parametrize(("points", "changed", "mean"), [(60, None, 1.0), (22, None, 0.0), (60, 2, 0.5), (60, 0, 0.0)])
def test_the_initial_reward_is_the_mean_of_the_first_twentieth(points: int, changed: int | None, mean: float) -> None:
    initial, late = initial_and_late_reward(np.arange(points, dtype=float), changed)
    assert initial.mean == mean
    assert late.mean == pytest.approx((points // 2 + points - 1) / 2, abs=0.5)


def test_more_initial_rewards_are_more_certain() -> None:
    noise = np.random.default_rng(0).normal(size=100)
    assert initial_and_late_reward(noise)[0].error * np.sqrt(5) == pytest.approx(initial_and_late_reward(noise, 1)[0].error)
