"""Results of settings that have no order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from studies import make_study

from advisor.computed.pipeline.ties import reason_settings_tie
from advisor.model.study import Study


def study(ends: Sequence[float], noise: float, *, repeats: int = 1, between_seeds: float = 0.0) -> Study:
    """A study whose settings end at these losses. noise: standard deviation between evaluations."""
    rng = np.random.default_rng(0)
    curves = [
        end + np.exp(-np.arange(30) / 3) + noise * rng.standard_normal(30) + between_seeds * rng.standard_normal()
        for end in ends
        for _ in range(repeats)
    ]
    params = [{"lr": 1e-3 * (1 + i)} for i in range(len(ends)) for _ in range(repeats)]
    tags = [{"seed": str(i)} for i in range(len(params))]
    return make_study(params, {"val/loss": curves}, tags=tags)


@pytest.mark.parametrize(
    ("step", "noise", "tied"),
    [(0.0, 0.01, True), (0.001, 0.01, True), (0.05, 0.01, False), (0.001, 0.0, False)],
    ids=["equal", "differences within noise", "differences beyond noise", "no noise"],
)
def test_the_noise_between_evaluations_decides(step: float, noise: float, tied: bool) -> None:
    reason = reason_settings_tie(study([1 + step * i for i in range(6)], noise))
    assert (reason is not None) == tied
    assert reason is None or "no more than the noise between evaluations" in reason


def test_repeats_show_noise_that_evaluations_do_not() -> None:
    ends = [1 + 0.01 * i for i in range(4)]
    assert reason_settings_tie(study(ends, 0.001)) is None
    reason = reason_settings_tie(study(ends, 0.001, repeats=3, between_seeds=0.1))
    assert reason is not None
    assert "the noise between seeds" in reason


def test_equal_results_tie() -> None:
    assert "all 4 settings have the same best val/loss" in str(
        reason_settings_tie(make_study([{"lr": 0.1 * i} for i in range(4)], {"val/loss": [[2.0, 1.0]] * 4}))
    )


def test_few_settings_that_are_equal_rarely_differ_by_chance() -> None:
    reasons = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        curves = [1 + np.exp(-np.arange(30) / 3) + 0.01 * rng.standard_normal(30) for _ in range(6)]
        reasons.append(reason_settings_tie(make_study([{"lr": 0.1 * (i + 1)} for i in range(6)], {"val/loss": curves})))
    assert np.mean([r is None for r in reasons]) <= 0.1


@pytest.mark.parametrize(("trials", "completions"), [(2, 8), (6, 8), (10, 8), (6, 2)])
def test_policies_of_equal_quality_rarely_differ_by_chance(trials: int, completions: int) -> None:
    """Right-or-wrong rewards of prompts of all difficulties; each trial samples its own completions."""
    rng, prompts, differ = np.random.default_rng(trials), 64, 0
    for _ in range(200):
        right = rng.binomial(completions, rng.random(prompts), (trials, prompts)) / completions
        deviations = np.sqrt(right * (1 - right) * completions / (completions - 1)).mean(1)
        made = make_study(
            [{"lr": 0.1 * (i + 1), "num_generations": completions} for i in range(trials)],
            {"eval_reward": [[r] for r in right.mean(1)], "eval_reward_std": [[d] for d in deviations]},
            objective="eval_reward",
            direction="maximize",
            tags=[{"n_valid": str(prompts)}] * trials,
        )
        differ += reason_settings_tie(made) is None
    assert differ <= 20  # 5 % of 200, and 3 standard deviations
