from __future__ import annotations

import numpy as np
import pytest
from policy_studies import POINTS, learning, policy_study
from promise import kept, studies
from studies import make_study, verdict

from advisor.computed.reinforcement import policy
from advisor.model.evidence import CurveEvidence
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor_rules.reinforcement.entropy_collapse import EntropyCollapse

RULE = "entropy-collapse"
AT = np.linspace(0, 1, POINTS)


def entropy(rng: np.random.Generator, speed: float, floor: float = 0.05) -> FloatArray:
    return np.asarray((floor + (1.5 - floor) * np.exp(-speed * AT)) * np.exp(0.1 * rng.normal(size=POINTS)))


def stuck(rng: np.random.Generator, level: float, points: int = POINTS) -> FloatArray:
    """A reward that rises to `level` in a tenth of the training and stays there."""
    return np.asarray(0.3 + (level - 0.3) * np.clip(10 * AT, 0, 1) + 0.03 * rng.normal(size=points))


def study(speed: float, level: float, trials: int = 3, seed: int = 0, *, spread: bool = True, still: bool = True) -> Study:
    rng = np.random.default_rng(seed)
    rewards = [stuck(rng, level) if still else learning(rng, end=level) for _ in range(trials)]
    more = {}
    if spread:  # of rewards that are 0 or 1
        more["reward_std"] = [np.sqrt(np.clip(r * (1 - r), 1e-4, 1)) for r in rewards]
        more["frac_reward_zero_std"] = [np.clip(0.2 + 10 * AT, 0, 0.95)] * trials
    return policy_study(rewards, entropy=[entropy(rng, speed) for _ in range(trials)], **more)


def example() -> Study:
    """The entropy is near zero after a fifth of the training, and half of the prompts stay unsolved."""
    return study(20.0, 0.5)


def test_fires_and_advises_to_keep_exploring() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert len(finding.trials) == 3
    assert "some prompts are solved and others are not" in finding.message
    assert "epsilon_high" in finding.action
    assert [change.kind for change in finding.changes] == ["advise"]


@pytest.mark.parametrize(("clipped", "recommended"), [(0.0, False), (0.01, True)])
def test_advises_a_higher_clipping_bound_unless_no_token_reaches_the_bound(clipped: float, recommended: bool) -> None:
    rng = np.random.default_rng(0)
    ratios = [np.where(AT > 0.5, clipped, 0.0)] * 3
    rewards = [stuck(rng, 0.05) for _ in ratios]
    made = policy_study(rewards, entropy=[entropy(rng, 20.0) for _ in ratios], clip_ratio__high_mean=ratios)
    (finding,) = verdict(RULE, made).findings
    assert ("raise the upper clipping bound" in str(finding.action)) == recommended


def test_the_share_is_that_of_all_later_steps_and_the_start_of_a_collapse_is_no_spike() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert "is on average 5 % of its initial value from step 11 on." in str(finding.message)
    assert "Its reward does not rise in the second half" in str(finding.message)
    (curves,) = [e for e in finding.evidence if isinstance(e, CurveEvidence)]
    assert all(mark.lasting for mark in curves.marks)


def test_a_trial_that_kept_its_entropy_shows_that_more_is_possible() -> None:
    rng = np.random.default_rng(0)
    rewards = [stuck(rng, 0.5), stuck(rng, 0.5), learning(rng, end=0.9)]
    curves = [entropy(rng, 20.0), entropy(rng, 20.0), entropy(rng, 1.0)]
    (finding,) = verdict(RULE, policy_study(rewards, entropy=curves)).findings
    assert finding.trials == ("run1", "run0") or finding.trials == ("run0", "run1")
    assert "whose entropy stayed high" in finding.message


def test_the_best_of_many_equal_trials_is_no_evidence_of_more_reward() -> None:
    """The best of 20 trials of equal true reward is better than the collapsed trial by chance."""
    rule, alarms = EntropyCollapse(), 0
    for seed in studies(60):
        rng = np.random.default_rng(seed)
        curves = [entropy(rng, 20.0), *(entropy(rng, 1.0) for _ in range(20))]
        made = policy_study([stuck(rng, 0.5) for _ in curves], entropy=curves)
        rewards = {entry.trial.index: entry for entry in policy.logged_signals(made, "policy_reward")}
        alarms += bool(rule.find_collapses(made, policy.logged_signals(made, "policy_entropy"), rewards))
    assert kept(alarms, len(studies(60)))


def test_a_reward_that_ends_below_its_start_shows_it_too() -> None:
    (finding,) = verdict(RULE, study(20.0, 0.05, spread=False)).findings
    assert "the reward started at a higher value" in finding.message


QUIET = {
    "entropy remains": study(1.0, 0.5),
    "it collapses late": study(3.0, 0.5),
    "the task is solved": study(20.0, 0.97),
    "the reward still rises": study(20.0, 0.6, still=False),
    "nothing shows that more is possible": study(20.0, 0.5, spread=False),
}


@pytest.mark.parametrize("made", QUIET.values(), ids=QUIET.keys())
def test_quiet(made: Study) -> None:
    assert verdict(RULE, made).status == "quiet"


@pytest.mark.parametrize("seed", range(20))
def test_quiet_if_a_noisy_reward_rises_slowly_to_its_end(seed: int) -> None:
    """The first and the last fifth of the second half may not differ significantly, but the line through all of it rises."""
    rng = np.random.default_rng(seed)
    rewards = [0.3 + 0.2 * AT + 0.06 * rng.normal(size=POINTS) for _ in range(3)]
    made = policy_study(
        rewards,
        entropy=[entropy(rng, 20.0) for _ in rewards],
        reward_std=[np.sqrt(np.clip(r * (1 - r), 1e-4, 1)) for r in rewards],
        frac_reward_zero_std=[np.clip(0.2 + 10 * AT, 0, 0.95)] * len(rewards),
    )
    assert verdict(RULE, made).status == "quiet"


@pytest.mark.parametrize("points", [20, 21, 25])
def test_quiet_if_the_rewards_end_before_the_collapse(points: int) -> None:
    rng = np.random.default_rng(0)
    curves = {"train/reward": [np.full(points, 0.5)] * 2, "train/entropy": [entropy(rng, 4.0) for _ in range(2)]}
    steps = {name: [np.arange(1, len(values[0]) + 1)] * 2 for name, values in curves.items()}
    made = make_study([{"beta": 0.0}] * 2, curves, objective="train/reward", direction="maximize", steps=steps)
    assert verdict(RULE, made).status == "quiet"


@pytest.mark.parametrize(("speed", "level", "still"), [(3.0, 0.6, False), (20.0, 0.97, True), (4.0, 0.9, False)])
def test_keeps_its_promise_while_policies_learn(speed: float, level: float, still: bool) -> None:
    made = (study(speed, level, seed=seed, still=still) for seed in studies(100))
    fired = [verdict(RULE, one).status == "fired" for one in made]
    assert kept(sum(fired), len(fired))
