"""Replays of ways to stop on trials that have ended."""

import numpy as np
import pytest

from advisor.engine.guard.policy import Policy, TrialProgress
from advisor.engine.guard.replay import guard_stopper, is_not_finite, replay_trials

STEPS = np.arange(1, 31) * 10


def progress(costs):
    return TrialProgress(STEPS, np.asarray(costs, float), 300.0)


def random_trials(rng, count):
    """Trials whose pace, floor and noise are random and unrelated to their number."""
    made = []
    for _ in range(count):
        floor, start, pace, noise = (rng.uniform(0, 1), rng.uniform(1, 3), rng.uniform(1, 12), 10 ** rng.uniform(-3, -1.3))
        made.append(progress(floor + start * np.exp(-pace * STEPS / 300) + rng.normal(0, noise, len(STEPS))))
    return made


def test_without_stopping_all_trials_end_by_themselves():
    trials = random_trials(np.random.default_rng(0), 6)
    assert replay_trials(trials, lambda *_: False, workers=2) == [30] * 6


def test_workers_begin_the_next_trial_when_one_ends():
    seen = []

    def note(trial, at, completed):
        seen.append((trials.index(trial), len(completed)))
        return False

    trials = [progress(np.full(30, float(i))) for i in range(4)]
    replay_trials(trials, note, workers=2)
    assert max(done for i, done in seen if i < 2) == 1
    assert min(done for i, done in seen if i >= 2) >= 1


def test_two_values_that_are_not_finite_stop_a_trial_and_one_does_not():
    once, twice = np.ones(30), np.ones(30)
    once[5] = twice[5] = twice[6] = np.nan
    assert replay_trials([progress(once), progress(twice)], guard_stopper(Policy())) == [30, 7]
    assert not is_not_finite(progress(once), 0)


def test_a_stopped_trial_is_no_sibling():
    counts = []

    def stops(trial, at, completed):
        counts.append(len(completed))
        return at == 3

    replay_trials([progress(np.ones(30)) for _ in range(3)], stops)
    assert set(counts) == {0}


@pytest.mark.parametrize("workers", [1, 4])
def test_the_winner_is_kept_and_steps_are_saved(workers):
    lost, saved, false, stopped = 0, [], 0, 0
    for seed in range(60):
        trials = random_trials(np.random.default_rng(seed), 24)
        ends = replay_trials(trials, guard_stopper(Policy()), workers)
        best = min(t.best[-1] for t in trials)
        lost += min(t.best[end - 1] for t, end in zip(trials, ends, strict=True)) > best
        saved.append(1 - sum(ends) / (30 * len(trials)))
        stopped += sum(end < 30 for end in ends)
        false += sum(end < 30 and t.best[-1] == best for t, end in zip(trials, ends, strict=True))
    assert lost <= 1  # of 60 studies
    assert np.mean(saved) > 0.15
    assert false <= 0.005 * stopped
