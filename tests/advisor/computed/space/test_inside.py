"""The trials that lie in a search space."""

from history_studies import round_of

from advisor.computed.space.inside import trials_inside
from advisor.model.spec import Parameter


def test_only_trials_in_all_ranges_lie_inside() -> None:
    study = round_of([1e-4, 1e-3, 1e-2], [0.3, 0.2, 0.4])
    narrow = study.spec.with_parameter("learning_rate", Parameter(low=5e-4, high=1e-2, scale="log"))
    assert [t.params["learning_rate"] for t in trials_inside(narrow, study.trials)] == [1e-3, 1e-2]
