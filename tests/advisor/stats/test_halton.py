"""Our Halton sequence is SciPy's, to the last bit."""

import numpy as np
import pytest
from promise import ALL
from scipy.stats import qmc

from advisor.stats.halton import Halton


@pytest.mark.parametrize("dimensions", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_points_are_scipys(dimensions, seed):
    sequence = Halton(dimensions, np.random.default_rng(seed))
    engine = qmc.Halton(dimensions, scramble=True, rng=np.random.default_rng(seed))
    for first, number in ((0, 256), (256, 100), (999_000 if ALL else 99_000, 10)):
        engine.fast_forward(first - engine.num_generated)
        assert np.array_equal(sequence.points(first, number), engine.random(number))
