"""The jobs of a study: their seeds and repeats."""

import pytest
from launches import CONDITIONAL as SPEC

from advisor.execution.job import default_seed, jobs
from advisor.model.errors import AdvisorError


def test_each_trial_has_its_own_seed_and_each_round_others():
    assert [j.seed for j in jobs(SPEC, 3, first_seed=5)] == [5, 6, 7]
    later = SPEC.model_copy(update={"round": 3})
    assert default_seed(SPEC) == 0
    assert default_seed(later) > default_seed(SPEC.model_copy(update={"round": 2})) > 100


def test_repeated_trials_have_the_same_seeds_each():
    found = jobs(SPEC.model_copy(update={"seeds": 2}), 3, first_seed=5)
    assert [(j.number, j.repeat, j.seed) for j in found] == [(0, 0, 5), (1, 0, 5), (2, 0, 5), (0, 1, 6), (1, 1, 6), (2, 1, 6)]
    assert found[0].params == found[3].params != found[1].params
    assert len({j.name for j in found}) == 6
    assert jobs(SPEC)[:3] == tuple(j for j in jobs(SPEC, 3))
    with pytest.raises(AdvisorError, match="--trials"):
        jobs(SPEC.model_copy(update={"trials": None}))
