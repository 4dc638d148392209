"""The good trials of a study."""

import pytest
from studies import make_study

from advisor.computed.curves.good_trials import good_trials
from advisor.model.finding import MissingData


@pytest.mark.parametrize(("first", "reach", "count"), [(1.0, 0.1, 2), (1.0, 0.5, 3), (0.2, 0.1, 4)])
def test_good_trials_are_near_the_best(first, reach, count):
    results = [0.2, 0.25, 0.5, 1.0]
    study = make_study([{"lr": r} for r in results], {"val/loss": [[first, 0.2], *([2.0, r] for r in results[1:])]})
    assert [t.params["lr"] for t in good_trials(study, reach)] == results[:count]


def test_without_results_there_are_none():
    with pytest.raises(MissingData):
        good_trials(make_study([{"lr": 0.1}], {"val/loss": [[float("nan")]]}), 0.1)
