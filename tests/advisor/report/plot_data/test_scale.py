import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.report.figures.scale import Limits, Scale, padded, spanning


def test_a_reverse_log_axis_spends_as_much_on_each_nine():
    scale = Scale(0.9, 0.999, 0, 100, reverse=True)
    assert [scale(v) for v in (0.9, 0.99, 0.999)] == pytest.approx([0, 50, 100])
    assert scale.takes(-3.0)
    assert not scale.takes(1.0)
    assert scale.ticks() == [(0.9, "0.9"), (0.99, "0.99"), (0.999, "0.999")]


@given(st.floats(1e-6, 5), st.floats(1.5, 1e5), st.integers(2, 8))
def test_reverse_ticks_lie_within_in_order_and_have_labels_of_their_own(left, factor, most):
    ticks = Scale(1 - left * factor, 1 - left, 0, 500, reverse=True).ticks(most)
    values = [value for value, _ in ticks]
    assert values == sorted(values)
    assert all(value < 1 for value in values)
    assert len({label for _, label in ticks}) == len(ticks)


def test_limits_take_in_what_can_stand_on_the_scale():
    assert spanning([0.5, 0.99, 1.0, float("nan")], "reverse-log") == padded(0.5, 0.99, log=False, reverse=True)
    assert spanning([0.0, 1e-3, 1.0], "log") == padded(1e-3, 1.0, log=True)
    assert spanning([], "linear") == spanning([2.0], "reverse-log") == Limits(0.0, 1.0, False)
    limits = spanning([0.9, 0.99], "reverse-log")
    assert limits.low < 0.9
    assert 0.99 < limits.high < 1
