"""Rank 0 merges its steps with the other ranks' values; all in this process."""

from __future__ import annotations

import math

import pytest

from advisor import contract
from advisor_logging.table import MetricRow
from advisor_pytorch.distributed.merging import MAX_STORED_STEPS_PER_RANK, StepMerger, merge_step
from advisor_pytorch.steps.gradients import clipped_norm_name, clipping_limit_name, is_sent_to_rank_0, shard_metric_name

TIME, RATE = contract.STEP_TIME, contract.EXAMPLES_PER_SECOND

NORM = shard_metric_name(contract.GRAD_NORM)


def row(step: int, **values: float) -> MetricRow:
    return (step, 1000 + step, {NORM: 3.0, **values})


def steps(rows: list[MetricRow]) -> list[int]:
    return [step for step, _, _ in rows]


def two_ranks() -> StepMerger:
    return StepMerger(2, wait_s=10.0)


def test_squares_of_the_parts_add_up() -> None:
    assert merge_step({NORM: 3.0, "train/loss": 1.0}, [{NORM: 4.0}, {NORM: 12.0}]) == {
        contract.GRAD_NORM: 13.0,
        "train/loss": 1.0,
    }


def test_a_norm_without_one_of_its_parts_is_left_out() -> None:
    assert merge_step({NORM: 3.0, "train/loss": 1.0}, [{NORM: 4.0}, None]) == {"train/loss": 1.0}
    assert merge_step({NORM: 3.0}, [{TIME: 1.0}]) == {}


def test_parts_that_are_not_finite_stay_visible() -> None:
    assert math.isnan(merge_step({NORM: math.nan}, [{NORM: 4.0}])[contract.GRAD_NORM])
    assert math.isinf(merge_step({NORM: 3.0}, [{NORM: math.inf}])[contract.GRAD_NORM])


def test_huge_and_tiny_parts_neither_overflow_nor_vanish() -> None:
    assert merge_step({NORM: 3e200}, [{NORM: 4e200}])[contract.GRAD_NORM] == pytest.approx(5e200)
    assert merge_step({NORM: 3e-200}, [{NORM: 4e-200}])[contract.GRAD_NORM] == pytest.approx(5e-200)


@pytest.mark.parametrize(("threshold", "clipped"), [(4.9, 1.0), (5.0, 0.0)])
def test_the_whole_norm_decides_whether_it_was_clipped(threshold: float, clipped: float) -> None:
    norm, limit = clipped_norm_name("0"), clipping_limit_name("0", is_partial=False)
    assert merge_step({norm: 3.0, limit: threshold}, [{norm: 4.0}]) == {contract.CLIPPED: clipped}
    assert merge_step({norm: 3.0, limit: threshold}, [None]) == {}
    assert is_sent_to_rank_0(norm)


def test_one_of_two_clippings_is_a_clipping() -> None:
    norms = {clipped_norm_name("0"): 3.0, clipped_norm_name("1"): 3.0}
    own = {**norms, clipping_limit_name("0", is_partial=False): 1.0, clipping_limit_name("1", is_partial=False): 100.0}
    assert merge_step(own, [norms]) == {contract.CLIPPED: 1.0}


@pytest.mark.parametrize(("after", "clipped"), [(4.0, 0.0), (3.9, 1.0)])
def test_a_clipping_by_value_on_any_rank_is_a_clipping(after: float, clipped: float) -> None:
    norm, limit = clipped_norm_name("0"), clipping_limit_name("0", is_partial=True)
    assert merge_step({norm: 3.0, limit: 3.0}, [{norm: 4.0, limit: after}]) == {contract.CLIPPED: clipped}
    assert is_sent_to_rank_0(limit)


def test_slowest_and_fastest_need_every_rank() -> None:
    merged = merge_step({TIME: 1.0}, [{TIME: 3.0}, {TIME: 0.5}])
    assert (merged[contract.SLOWEST_RANK], merged[contract.FASTEST_RANK], merged[TIME]) == (3.0, 0.5, 1.0)
    assert merge_step({TIME: 1.0}, [{TIME: 3.0}, None]) == {TIME: 1.0}


def test_examples_are_those_of_all_ranks() -> None:
    assert merge_step({RATE: 10.0}, [{RATE: 30.0}])[RATE] == 40.0
    assert merge_step({RATE: 10.0}, [{RATE: 30.0}, None])[RATE] == 60.0
    assert merge_step({RATE: 10.0}, [None])[RATE] == 20.0


def test_steps_wait_for_the_other_rank_and_leave_in_order() -> None:
    merger = two_ranks()
    merger.add_steps_of_rank_0([row(0), row(1), row(2)], now=0.0)
    assert merger.take_ready_steps(1.0) == []
    merger.add_steps_of_rank(1, [(0, {NORM: 4.0}), (1, {NORM: 4.0})])
    assert [(step, values) for step, _, values in merger.take_ready_steps(1.0)] == [
        (0, {contract.GRAD_NORM: 5.0}),
        (1, {contract.GRAD_NORM: 5.0}),
    ]
    assert merger.is_waiting
    assert merger.first_incomplete_step is None


def test_a_silent_rank_is_waited_for_once_and_again_when_it_speaks() -> None:
    merger = two_ranks()
    merger.add_steps_of_rank_0([row(0)], now=0.0)
    assert merger.take_ready_steps(9.9) == []
    assert steps(merger.take_ready_steps(10.0)) == [0]
    assert merger.first_incomplete_step == 0
    merger.add_steps_of_rank_0([row(1)], now=11.0)
    assert steps(merger.take_ready_steps(11.0)) == [1]
    merger.add_steps_of_rank(1, [(2, {NORM: 4.0})])
    merger.add_steps_of_rank_0([row(2), row(3)], now=12.0)
    assert [values for _, _, values in merger.take_ready_steps(12.0)] == [{contract.GRAD_NORM: 5.0}]
    assert merger.is_waiting


def test_a_step_that_the_other_rank_left_out_is_not_waited_for() -> None:
    merger = two_ranks()
    merger.add_steps_of_rank(1, [(0, {NORM: 4.0}), (2, {NORM: 4.0})])
    merger.add_steps_of_rank_0([row(0), row(1), row(2)], now=0.0)
    assert [contract.GRAD_NORM in values for _, _, values in merger.take_ready_steps(0.0)] == [True, False, True]


def test_a_rank_that_left_is_not_waited_for() -> None:
    merger = two_ranks()
    merger.add_steps_of_rank(1, [(0, {NORM: 4.0})])
    merger.stop_waiting_for(1)
    merger.add_steps_of_rank_0([row(0), row(1)], now=0.0)
    assert [values for _, _, values in merger.take_ready_steps(0.0)] == [{contract.GRAD_NORM: 5.0}, {}]


def test_memory_is_bounded_where_a_rank_runs_ahead() -> None:
    merger = two_ranks()
    for start in range(0, 3 * MAX_STORED_STEPS_PER_RANK, 1000):
        merger.add_steps_of_rank(1, [(step, {NORM: 4.0}) for step in range(start, start + 1000)])
    assert len(merger._others[1]) == MAX_STORED_STEPS_PER_RANK
