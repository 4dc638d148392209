"""Which trials are near the best one."""

import numpy as np
import pytest

from advisor.computed.curves.good_trials import count_trials_near_best


@pytest.mark.parametrize(("first", "reach", "count"), [(1.0, 0.1, 2), (1.0, 0.5, 3), (0.2, 0.1, 4)])
def test_trials_near_the_best_are_counted(first, reach, count):
    assert count_trials_near_best(np.array([0.2, 0.25, 0.5, 1.0]), first, reach=reach) == count
    assert count_trials_near_best(np.array([]), first, reach=reach) == 0
