"""The benchmark of the gate runs loops and counts what it should."""

import numpy as np
from gate import HEAD, WORLDS, LoopResults, run_recorded_loop, run_simulated_loop, table_row


def test_a_short_loop_in_each_world_asks_the_gate():
    for world in WORLDS:
        tally = LoopResults()
        run_simulated_loop(world, 0, tally, baseline=5, proposals=6)
        assert (tally.loops, len(tally.extra)) == (1, 6)
        assert tally.gains_kept <= tally.gains
        assert len(table_row(world, tally, tally).split("|")) == len(HEAD.splitlines()[0].split("|"))


def test_the_better_single_run_is_often_a_false_keep_and_costs_nothing():
    tally = LoopResults()
    for seed in range(5):
        run_simulated_loop("normal", seed, tally, baseline=5, proposals=50, single=True)
    assert tally.loops_with_false == 5
    assert sum(tally.extra) == 0


def test_a_baseline_with_one_run_is_repeated_first():
    tally = LoopResults()
    run_simulated_loop("normal", 1, tally, baseline=1, proposals=3)
    assert max(tally.extra) >= 3


def test_recorded_repeats_make_a_loop():
    tally = LoopResults()
    run_recorded_loop(np.random.default_rng(0).normal(3.28, 0.001, 20), 0, tally, baseline=5, proposals=5)
    assert tally.loops == 1
