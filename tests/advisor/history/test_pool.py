from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from history_studies import round_of

from advisor.history.pool import add_earlier_trials, round_numbers
from advisor.model.spec import Parameter

REPEAT_BEST_FIRST_REASON = (1e-4, 1e-3, 4e-3, 9e-3)
COSTS = (0.5, 0.4, 0.3, 0.2)


def first(**spec):
    return round_of(REPEAT_BEST_FIRST_REASON, COSTS, study="first", **spec)


def second(**spec):
    given = {"study": "second", "parent": "first", "round": 2, **spec}
    return round_of((5e-3, 2e-2, 8e-2), (0.25, 0.15, 0.18), low=3e-3, high=0.1, **given)


def test_earlier_trials_that_lie_in_the_space_count_as_data():
    own, earlier = second(), first()
    found = add_earlier_trials(own, [earlier])
    assert [t.name for t in found.study.trials] == ["trial-2 (round 1)", "trial-3 (round 1)", "trial-0", "trial-1", "trial-2"]
    assert [t.round for t in found.study.trials] == [1, 1, None, None, None]
    assert [t.index for t in found.study.trials] == [0, 1, 2, 3, 4]
    assert found.study.costs == pytest.approx([0.3, 0.2, 0.25, 0.15, 0.18])
    assert {t.facts["study"] for t in found.study.trials} == {"first", "second"}
    assert found.counted == (2,)
    assert found.notes == (
        "2 of the 4 trials of round 1 (first) lie in this search space and count as data; 2 lie outside its search space.",
    )
    assert found.study.spec is own.spec
    assert [t.name for t in found.study.outside] == ["trial-0", "trial-1"]


def test_trials_that_failed_count_too():
    earlier = round_of((4e-3, 5e-2), (0.3, np.nan), high=0.1, study="first")
    assert add_earlier_trials(second(), [earlier]).counted == (2,)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"steps": 500}, {}, "2 trained for 500 steps instead of 1,000"),
        ({"tags": {"git_commit": "aaa"}}, {"tags": {"git_commit": "bbb"}}, "2 come from another version of the code"),
        ({"tags": {"n_train": "100"}}, {"tags": {"n_train": "200"}}, "2 trained on other data"),
        ({"tags": {"schema": "1"}}, {"tags": {"schema": "1", "grad_clip_norm": "1.0"}}, "2 clipped gradients differently"),
    ],
)
def test_trials_of_another_training_do_not_count_for_a_stated_reason(before, after, why):
    found = add_earlier_trials(second(**after), [first(**before)])
    assert found.counted == (0,)
    assert why in found.notes[0]
    assert len(found.study.trials) == 3


def test_a_batch_size_that_is_searched_need_not_be_the_same():
    def searched(study):
        parameters = {**study.spec.parameters, "batch_size": Parameter(choices=(32, 64))}
        size = int(study.trials[0].facts["batch_size"])
        trials = tuple(replace(t, params={**t.params, "batch_size": size}) for t in study.trials)
        return replace(study, trials=trials, spec=study.spec.model_copy(update={"parameters": parameters}))

    own, earlier = second(tags={"batch_size": "32"}), first(tags={"batch_size": "64"})
    assert add_earlier_trials(own, [earlier]).counted == (0,)
    assert add_earlier_trials(searched(own), [searched(earlier)]).counted == (2,)


def test_nothing_counts_if_the_schedule_or_the_objective_changed():
    assert (
        "4 used another learning-rate schedule" in add_earlier_trials(second(schedule={"kind": "cosine"}), [first()]).notes[0]
    )
    other = first(direction="maximize")
    assert "4 have another objective" in add_earlier_trials(second(), [other]).notes[0]


def test_a_trial_without_a_searched_hyperparameter_does_not_count():
    own = second()
    wider = {**own.spec.parameters, "dropout": Parameter(type="float", low=0.0, high=0.5)}
    own = replace(own, spec=own.spec.model_copy(update={"parameters": wider}))
    assert "had no dropout" in add_earlier_trials(own, [first()]).notes[0]


def test_a_fixed_value_must_be_the_same():
    def fixed(study, value):
        parameters = {**study.spec.parameters, "width": Parameter(role="fixed", value=value)}
        trials = tuple(replace(t, params={**t.params, "width": value}) for t in study.trials)
        return replace(study, trials=trials, spec=study.spec.model_copy(update={"parameters": parameters}))

    assert add_earlier_trials(fixed(second(), 64), [fixed(first(), 64)]).counted == (2,)
    assert add_earlier_trials(fixed(second(), 64), [fixed(first(), 128)]).counted == (0,)


def test_without_earlier_rounds_the_study_is_unchanged():
    own = second()
    assert add_earlier_trials(own, []).study is own


def test_rounds_have_the_numbers_of_their_files_if_these_ascend():
    assert round_numbers([first(), second(round=3)]) == [1, 3]
    assert round_numbers([first(), second(round=1)]) == [1, 2]


def test_earlier_rounds_do_not_change_how_the_sampler_is_recognised():
    from advisor.computed.space import sampler

    rates = [float(r) for r in np.geomspace(3e-3, 0.1, 24)]
    own = round_of(rates, [0.2 + 0.1 * np.log10(r / 0.03) ** 2 for r in rates], low=3e-3, high=0.1, study="second")
    shuffled = np.random.default_rng(0).permutation(len(own.trials))
    trials = tuple(replace(t, started=float(s)) for t, s in zip(own.trials, shuffled, strict=True))
    own = replace(own, trials=trials)
    before = [float(r) for r in np.geomspace(3.1e-3, 9e-3, 16)]
    earlier = round_of(before, [0.5 + 0.01 * i for i in range(16)], study="first")
    earlier = replace(earlier, trials=tuple(replace(t, started=-1.0 - t.index) for t in earlier.trials))
    pooled = add_earlier_trials(own, [earlier]).study
    assert sum(t.round == 1 for t in pooled.trials) == 16
    assert sampler.did_sampler_use_results(pooled) == sampler.did_sampler_use_results(own) is False
