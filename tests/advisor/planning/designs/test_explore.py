from __future__ import annotations

from planning_studies import QUIET, bowl, only_study

from advisor.planning import REPEAT_GOAL


def test_too_few_settings_near_an_end_are_followed_by_more_of_them() -> None:
    few = bowl(8, centre=1.0)
    spec = only_study(few, *QUIET)
    assert (spec.goal, spec.trials) == ("Search the right space: 4 more trials", 4)
    assert {n: p.domain for n, p in spec.searched.items()} == {n: p.domain for n, p in few.searched.items()}
    assert only_study(bowl(8), *QUIET).sampler.kind == "adaptive"
    assert only_study(few, *QUIET[1:]).goal == REPEAT_GOAL
