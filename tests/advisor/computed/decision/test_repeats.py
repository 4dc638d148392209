"""Settings and their repeats, from which the trial variance is estimated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from studies import make_study

from advisor.computed.decision import repeats
from advisor.model.study import Study, TrialStatus

COSTS = (0.500, 0.503, 0.506, 0.800, 0.600, 0.603, 0.606, 0.950)


def _repeated(last: TrialStatus) -> Study:
    """Two settings of four seeds; the last run of each has this status and stopped at 40 % of the planned 1,000 steps."""
    curves = [[2.0, *[1.0] * 8, c] if i % 4 < 3 else [2.0, 1.5, 1.2, c] for i, c in enumerate(COSTS)]
    made = make_study([{"lr": 0.1 * (1 + i // 4)} for i in range(8)], {"val/loss": curves}, seeds=[i % 4 for i in range(8)])
    trials = [replace(t, status=last if i % 4 == 3 else "complete") for i, t in enumerate(made.trials)]
    return replace(made, trials=tuple(trials), spec=made.spec.model_copy(update={"max_train_steps": 1000}))


@pytest.mark.parametrize("status", ["pruned", "stopped"])
def test_runs_that_ended_early_are_no_repeats(status: TrialStatus) -> None:
    tried = repeats.full_length_settings(_repeated(status))
    assert [len(s.trials) for s in tried] == [3, 3]
    assert repeats.variance_between_seeds(tried) == (pytest.approx(0.003), 4)


def test_complete_runs_are_repeats() -> None:
    tried = repeats.full_length_settings(_repeated("complete"))
    assert [len(s.trials) for s in tried] == [4, 4]


@pytest.mark.parametrize(("params", "settings"), [({}, 2), ({"lr": 0.1}, 1)])
def test_without_hyperparameters_the_commit_is_the_setting(params: dict[str, float], settings: int) -> None:
    made = make_study([params] * 4, {"val/loss": [[2.0, 1.0, c] for c in COSTS[:4]]}, seeds=[0, 1, 2, 3])
    trials = [replace(t, facts={**t.facts, "git_commit": "ab"[i // 2] * 7}) for i, t in enumerate(made.trials)]
    assert len(repeats.full_length_settings(replace(made, trials=tuple(trials)))) == settings


def test_the_first_trial_of_each_setting():
    study = make_study([{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}], {"val/loss": [[3.0], [2.0], [1.0]]}, seeds=[0, 1, 2])
    assert [t.name for t in repeats.first_trial_per_setting(study.trials)] == ["trial-0", "trial-1"]
    assert [t.name for t in repeats.first_trial_per_setting(study.ranked())] == ["trial-2", "trial-1"]


def _five_settings(deviations: list[float], seed: int) -> list[repeats.Setting]:
    """Five settings of four seeds, each 10 worse than the last, with these standard deviations between seeds."""
    rng = np.random.default_rng(seed)
    costs = [10 * (1 + i) + d * rng.standard_normal() for i, d in enumerate(deviations) for _ in range(4)]
    params = [{"lr": 0.1 * (1 + i // 4)} for i in range(20)]
    made = make_study(params, {"val/loss": [[99.0, c] for c in costs]}, seeds=[i % 4 for i in range(20)])
    return list(repeats.full_length_settings(made))


def test_noise_of_bad_settings_is_no_noise_of_good_ones() -> None:
    for seed in range(5):
        tried = _five_settings([0.01, 0.01, 0.01, 0.01, 1.0], seed)
        assert 4 not in [tried.index(s) for s in repeats.settings_of_equal_variance(tried)]
        assert repeats.variance_between_seeds(tried) == (pytest.approx(0.01, rel=0.5), 12)


def test_equal_noise_is_pooled_over_all_settings() -> None:
    left_out = sum(len(repeats.settings_of_equal_variance(_five_settings([0.01] * 5, seed))) < 5 for seed in range(100))
    assert left_out <= 10
