"""Whether training jumps together with validation."""

import numpy as np

from advisor_rules.curves._jump_causes import p_of_independent_jumps


def test_whether_two_curves_jump_together():
    rng = np.random.default_rng(3)
    a = rng.standard_normal(60)
    assert p_of_independent_jumps(a, a + 0.3 * rng.standard_normal(60)) < 0.001
    assert p_of_independent_jumps(a, rng.standard_normal(60)) > 0.01
    assert np.isnan(p_of_independent_jumps(a, np.zeros(60)))
