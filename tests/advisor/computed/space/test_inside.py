"""The trials that lie in a search space."""

from history_studies import round_of
from studies import make_study

from advisor.computed.space.inside import trials_in_space
from advisor.model.spec import Parameter


def test_only_trials_in_all_ranges_lie_inside() -> None:
    study = round_of([1e-4, 1e-3, 1e-2], [0.3, 0.2, 0.4])
    narrow = study.spec.with_parameter("learning_rate", Parameter(low=5e-4, high=1e-2, scale="log"))
    assert [t.params["learning_rate"] for t in trials_in_space(narrow, study.trials)] == [1e-3, 1e-2]


def test_a_trial_with_another_fixed_value_lies_outside_unless_its_condition_is_not_met():
    study = make_study(
        [{"opt": "sgd", "dropout": 0.1}, {"opt": "sgd", "dropout": 0.2}, {"opt": "adam", "dropout": 0.2}, {"opt": "sgd"}],
        {"val/loss": [0.1, 0.2, 0.3, 0.4]},
    )
    fixed = Parameter(role="fixed", value=0.1)
    spec = study.spec.with_parameter("dropout", fixed)
    assert [t.index for t in trials_in_space(spec, study.trials)] == [0, 3]
    conditional = spec.with_parameter("dropout", fixed.model_copy(update={"when": {"opt": "sgd"}}))
    assert [t.index for t in trials_in_space(conditional, study.trials)] == [0, 2, 3]
