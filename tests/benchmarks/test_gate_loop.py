"""The loops of the benchmark spend their budget on the same proposals and count what they kept."""

import numpy as np
from gate_loop import Loop, pair_of_loops, table_row, true_gains


def test_both_loops_spend_the_budget_and_no_more():
    for loop in pair_of_loops(120, 20, 1.0, 0):
        assert loop.runs == 120
        assert loop.transcript()[-1].startswith(f"end: {len(loop.proposed)} proposals, 120 runs, true quality ")
        kept = sum(loop.effects[idea] for idea, kept, _ in loop.answers() if kept)
        np.testing.assert_allclose(loop.quality, kept)


def test_a_kept_proposal_is_not_proposed_again_and_a_discarded_one_is():
    loop = Loop(60, true_gains(10, 1.0), np.random.default_rng(1)).go(single=True)
    kept = [idea for idea, kept, _ in loop.answers() if kept]
    assert len(set(kept)) == len(kept) > 0
    assert len(loop.proposed) > 10


def test_a_loop_ends_when_every_proposal_is_kept():
    loop = Loop(60, [50.0, 50.0], np.random.default_rng(0)).go(single=True)
    assert (loop.runs, loop.quality, loop.false_keeps) == (3, 100.0, 0.0)


def test_a_row_has_the_ends_of_both_loops():
    cells = table_row(60, 20, 1.0, range(2)).split("|")[1:-1]
    assert [cell.strip() for cell in cells[:3]] == ["20", "1", "60"]
    assert len(cells) == 9
