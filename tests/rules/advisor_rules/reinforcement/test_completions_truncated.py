from __future__ import annotations

import numpy as np
import pytest
from policy_studies import POINTS, learning, policy_study
from promise import kept, studies
from studies import verdict

from advisor.analysis import analyze_study
from advisor.engine.registry import load_rules
from advisor.model.change import Advise, FixParameter
from advisor.model.study import Study
from advisor.planning import new_scores
from advisor.report.text import headline

RULE = "completions-truncated"


def study(start: float, late: float, trials: int = 3, seed: int = 0, size: int = 64, end: float = 0.8, **params: int) -> Study:
    """A share of truncated completions that goes from `start` to `late`, counted over `size` completions a step.

    end: reward at the end; it is 0.3 at the start.
    """
    rng = np.random.default_rng(seed)
    shares = [rng.binomial(size, np.linspace(start, late, POINTS)) / size for _ in range(trials)]
    return policy_study([learning(rng, end=end) for _ in range(trials)], params, completions__clipped_ratio=shares)


def example() -> Study:
    """The completions grow into the limit."""
    return study(0.02, 0.7, max_completion_length=256)


def test_completions_that_grow_into_the_limit_call_for_another_reward() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert "after 6 % at its start" in finding.message
    assert "independent of length" in finding.action
    assert [change.kind for change in finding.changes] == ["advise"]


def test_a_limit_that_never_fitted_is_doubled() -> None:
    made = study(0.6, 0.5, max_completion_length=256)
    (finding,) = verdict(RULE, made).findings
    change, first_rewards = finding.changes
    assert isinstance(change, FixParameter)
    assert change.apply(made.spec).parameters["max_completion_length"].value == 512
    assert change.new_scores, "rewards of longer completions are not comparable"
    assert isinstance(first_rewards, Advise)


def test_a_reward_that_rises_shows_that_answers_may_fit() -> None:
    """Completions that are all cut off can earn the full reward; then a limit that is too short is less certain."""
    rises, flat = study(1.0, 1.0, max_completion_length=6), study(1.0, 1.0, max_completion_length=6, end=0.3)
    (high,), (low,) = (verdict(RULE, made).findings for made in (rises, flat))
    assert str(high.message).startswith("In 3 of 3 trials, nearly all completions are cut off at 6 tokens, from the start")
    assert "only their end is cut off" in high.message
    assert "can lack its final answer" in low.message
    assert high.confidence < low.confidence


def test_the_next_study_trains_the_best_settings_again_with_the_new_limit() -> None:
    made = study(1.0, 1.0, trials=8, max_completion_length=6)
    rules = load_rules()
    report = analyze_study(made, rules=rules)
    (next_study,) = report.next_studies
    spec = next_study.spec
    assert spec.goal == "Train the 5 best settings again with max_completion_length 12"
    assert spec.parameters["max_completion_length"].value == 12
    assert [s["learning_rate"] for s in spec.settings] == [t.params["learning_rate"] for t in made.ranked()[:5]]
    assert new_scores.ANALYZE_ALONE_NOTE in spec.notes
    assert new_scores.NOT_COMPARABLE_NOTE in str(headline.headline(report))


def test_without_a_known_limit_it_only_advises() -> None:
    (finding,) = verdict(RULE, study(0.6, 0.5)).findings
    assert [change.kind for change in finding.changes] == ["advise"]


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.02), (0.9, 0.0), (0.1, 0.15)])
def test_quiet_if_few_are_cut_off_late(start: float, end: float) -> None:
    assert verdict(RULE, study(start, end)).status == "quiet"


def of_trials(*shares: float) -> Study:
    """Trials with these constant shares of truncated completions, best trial first."""
    rng = np.random.default_rng(0)
    rewards = [learning(rng, end=0.8 - 0.1 * i) for i in range(len(shares))]
    curves = [rng.binomial(256, np.full(POINTS, share)) / 256 for share in shares]
    return policy_study(rewards, completions__clipped_ratio=curves)


def test_a_best_trial_at_the_limit_does_not_hide_most_trials_beyond_it() -> None:
    made = of_trials(0.2, 0.35, 0.4)
    (finding,) = verdict(RULE, made).findings
    assert list(finding.trials) == [t.id for t in made.ranked()[1:]]


@pytest.mark.parametrize("shares", [(0.1, 0.35, 0.4), (0.2, 0.2, 0.4), (0.2,)])
def test_quiet_if_the_best_trial_is_below_the_limit_or_few_are_beyond(shares: tuple[float, ...]) -> None:
    assert verdict(RULE, of_trials(*shares)).status == "quiet"


def test_completions_that_grow_into_the_limit_late_are_found() -> None:
    """The share rises from 0 to 0.9 within the second half, which is a trend and not noise around its mean."""
    rng = np.random.default_rng(0)
    share = 0.9 / (1 + np.exp(-30 * (np.linspace(0, 1, POINTS) - 0.75)))
    curves = [rng.binomial(96, share) / 96 for _ in range(2)]
    (finding,) = verdict(RULE, policy_study([learning(rng) for _ in curves], completions__clipped_ratio=curves)).findings
    assert "independent of length" in finding.action


@pytest.mark.parametrize("trials", [1, 4])
@pytest.mark.parametrize(("start", "late"), [(0.2, 0.2), (0.05, 0.25)], ids=["constant", "rising"])
def test_keeps_its_promise_at_the_limit(start: float, late: float, trials: int) -> None:
    """The mean over the second half is exactly the limit."""
    fired = [verdict(RULE, study(start, late, trials, seed)).status == "fired" for seed in studies(100)]
    assert kept(sum(fired), len(fired))
