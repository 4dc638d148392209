from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from policy_studies import POINTS, learning, policy_study
from promise import kept, studies
from studies import make_study, verdict

from advisor.model.change import SetRange
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.space import FloatArray
from advisor.model.study import Study

RULE = "policy-jumps"


def growing(rng: np.random.Generator, scatter: float = 0.3, level: float = 0.5) -> FloatArray:
    """A KL divergence that grows from zero and levels off, with multiplicative noise."""
    at = np.linspace(0.01, 1, POINTS)
    return np.asarray(level * (1 - np.exp(-4 * at)) * np.exp(scatter * rng.normal(size=POINTS)))


def study(jumps: int, factor: float = 300.0, trials: int = 3, seed: int = 0, scatter: float = 0.3, level: float = 0.5) -> Study:
    rng = np.random.default_rng(seed)
    curves = [growing(rng, scatter, level) for _ in range(trials)]
    for curve in curves:
        curve[rng.choice(np.arange(20, POINTS), jumps, replace=False)] *= factor
    return policy_study([learning(rng) for _ in range(trials)], kl=curves)


def example() -> Study:
    """The KL divergence jumps to hundreds of times its level four times in each trial."""
    return study(4)


def test_fires_and_searches_lower_rates() -> None:
    made = example()
    (finding,) = verdict(RULE, made).findings
    assert len(finding.trials) == 3
    (change,) = finding.changes
    assert isinstance(change, SetRange)
    after = change.apply(made.spec).parameters["learning_rate"]
    assert (after.low, after.high) == (1e-7, 1e-5)


def test_a_curve_that_jumps_all_the_time_counts_without_a_test() -> None:
    (finding,) = verdict(RULE, study(35)).findings
    assert finding.confidence == 0.7
    (figures,) = [e for e in finding.evidence if isinstance(e, FigureEvidence)]
    assert "not tested" in [str(value) for _, value in figures.rows]


def test_the_ratio_is_that_of_the_step() -> None:
    made = study(4, trials=1)
    curve = made.curve(made.trials[0], "policy_kl").values.copy()
    curve[60] *= 1e-9
    curve[:20] *= 1e-5
    curve[5] *= 5e4  # a larger ratio, but near the reference
    (finding,) = verdict(RULE, policy_study([learning(np.random.default_rng(0))], kl=[curve])).findings
    assert int(str(finding.message).split(" times")[0].split()[-1].replace(",", "")) < 1000


@pytest.mark.parametrize(
    ("jumps", "factor", "level"),
    [(0, 1.0, 0.5), (4, 4.0, 0.5), (1, 300.0, 0.5), (4, 300.0, 1e-3)],
    ids=["none", "small", "a single point", "near the reference"],
)
def test_quiet(jumps: int, factor: float, level: float) -> None:
    assert verdict(RULE, study(jumps, factor, level=level)).status == "quiet"


def departed(end: float, level: float = 2.0, seed: int = 0) -> Study:
    """A policy that is far from its reference from its second step on. end: last reward; it starts at 0.5."""
    rng = np.random.default_rng(seed)
    curves = [level * np.exp(0.2 * rng.normal(size=POINTS)) for _ in range(3)]
    return policy_study([learning(rng, 0.5, end) for _ in curves], kl=curves)


def test_a_policy_that_jumped_at_once_shows_by_a_lower_reward() -> None:
    made = departed(0.1)
    (finding,) = verdict(RULE, made).findings
    assert "KL divergence of 2.1 nats per token from its reference" in finding.message
    assert len(finding.trials) == 3
    (change,) = finding.changes
    assert isinstance(change, SetRange)


@pytest.mark.parametrize(("end", "level"), [(0.8, 2.0), (0.1, 0.5)], ids=["the reward rises", "near the reference"])
def test_quiet_if_a_policy_is_far_and_better_or_worse_and_near(end: float, level: float) -> None:
    assert verdict(RULE, departed(end, level)).status == "quiet"


def test_keeps_its_promise_far_away_at_the_same_reward() -> None:
    fired = [verdict(RULE, departed(0.5, seed=seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))


def departed_at(step: int, ends: Sequence[float], first: float = 0.5) -> Study:
    """Policies that start at the reward 0.5 and are far from their reference from `step` on, where their rewards fall to `ends`.

    first: very first reward, which batch noise may lower.
    """
    rng, at = np.random.default_rng(0), np.arange(POINTS)
    rewards = [np.where(at < step, 0.5, end) + 0.02 * rng.normal(size=POINTS) for end in ends]
    for reward in rewards:
        reward[0] = first
    return policy_study(rewards, kl=[np.where(at < step, 0.1, 2.0) * np.exp(0.2 * rng.normal(size=POINTS)) for _ in ends])


def test_the_start_is_the_mean_of_the_first_rewards_because_one_batch_is_noisy() -> None:
    (finding,) = verdict(RULE, departed_at(10, [0.3, 0.3, 0.3], first=0.3)).findings
    assert "its mean reward falls from 0.45" in finding.message
    (curves,) = [e for e in finding.evidence if isinstance(e, CurveEvidence)]
    assert all(mark.lasting for mark in curves.marks)


def test_rewards_of_a_policy_that_is_far_away_are_no_start() -> None:
    (finding,) = verdict(RULE, departed_at(1, [0.3, 0.3, 0.3])).findings
    assert "its mean reward falls from 0.5 " in finding.message


@pytest.mark.parametrize(("ends", "status"), [((0.7, 0.7, 0.3, 0.3), "fired"), ((0.7, 0.3), "quiet")])
def test_half_of_several_trials_are_enough(ends: Sequence[float], status: str) -> None:
    """One of two trials is significant by chance too often."""
    assert verdict(RULE, departed_at(10, ends)).status == status


def few_rewards(drop: float, seed: int) -> Study:
    """Three policies far from their reference whose reward is logged at every fifth step only, as with several steps a batch."""
    rng = np.random.default_rng(seed)
    rewards = [np.where(np.arange(POINTS) == 0, 0.4, 0.4 - drop) + 0.1 * rng.normal(size=POINTS) for _ in range(3)]
    made = policy_study(rewards, kl=[2 * np.exp(0.2 * rng.normal(size=POINTS)) for _ in rewards])
    curves = {"eval_reward": [r[9::10] for r in rewards], "train/reward": [r[::5] for r in rewards]}
    steps = {"eval_reward": [np.arange(10, POINTS + 1, 10)] * 3, "train/reward": [np.arange(1, POINTS + 1, 5)] * 3}
    curves["train/kl"] = [made.curve(t, "policy_kl").values for t in made.trials]
    steps["train/kl"] = [np.arange(1, POINTS + 1)] * 3
    return make_study([t.params for t in made.trials], curves, steps=steps, objective="eval_reward", direction="maximize")


def test_most_trials_show_together_what_few_noisy_rewards_show_in_none() -> None:
    """With a level corrected for the number of trials, the rule fires on 17 of these 30 studies."""
    fired = [verdict(RULE, few_rewards(0.25, seed)).status == "fired" for seed in range(30)]
    assert sum(fired) >= 21


def test_keeps_its_promise_with_few_rewards() -> None:
    fired = [verdict(RULE, few_rewards(0.0, seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))


def test_quiet_if_only_a_poor_trial_jumps() -> None:
    rng = np.random.default_rng(2)
    curves = [growing(rng) for _ in range(3)]
    curves[2][[30, 50, 70]] *= 500
    rewards = [learning(rng), learning(rng), learning(rng, end=0.3)]
    assert verdict(RULE, policy_study(rewards, kl=curves)).status == "quiet"


@pytest.mark.parametrize("scatter", [0.1, 0.5, 1.0])
def test_keeps_its_promise_on_noisy_divergences(scatter: float) -> None:
    made = (study(0, trials=3, seed=seed, scatter=scatter, level=2.0) for seed in studies(100))
    fired = [verdict(RULE, one).status == "fired" for one in made]
    assert kept(sum(fired), len(fired))
