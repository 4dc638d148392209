"""The best setting of a search: means over runs, failures, and repeats that count more than single runs."""

import math

from advisor.planning.blocks import TrainedTrial, leader


def trial(lr, cost, *, probe=None, steps=10):
    return TrainedTrial(f"{lr} {cost}", {"lr": lr}, {"lr": lr}, cost, steps, probe=probe)


def test_repeated_settings_come_before_single_runs():
    once, twice = [trial(1, 0.1)], [trial(2, 0.2), trial(2, 0.4)]
    assert leader.trials_of_best_setting([*once, *twice]) == twice
    assert leader.lowest_cost_trials(leader.group_by_setting([*once, *twice])) == once
    assert leader.trials_of_best_setting(once) == once


def test_a_setting_with_a_failed_run_is_not_the_best():
    failing, sound = [trial(1, 0.1), trial(1, math.nan)], [trial(2, 0.5)]
    assert leader.mean_cost(failing) == math.inf
    assert leader.trials_of_best_setting([*failing, *sound]) == sound


def test_another_length_is_another_setting_and_probes_are_none():
    trials = [trial(1, 0.3), trial(1, 0.1, steps=20), trial(1, 0.0, probe="warmup")]
    assert [[t.cost for t in group] for group in leader.group_by_setting(trials)] == [[0.3], [0.1]]
    assert leader.trials_of_best_setting(trials)[0].cost == 0.1


def test_of_equal_settings_the_last_one_leads():
    assert leader.trials_of_best_setting([trial(1, 0.1), trial(2, 0.1)])[0].setting == {"lr": 2}


def test_only_a_setting_without_a_failed_run_has_a_result():
    assert leader.any_setting_has_result([trial(1, 0.1), trial(2, math.nan)])
    assert not leader.any_setting_has_result([trial(1, 0.1), trial(1, math.nan)])
    assert not leader.any_setting_has_result([])
