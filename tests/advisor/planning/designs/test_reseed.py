"""Repeats of the best setting, and of all settings that a study compares."""

from __future__ import annotations

from studies import make_study

from advisor.planning import plan
from advisor.planning.sampling.halton import draw_trials


def test_a_study_that_compares_settings_repeats_all_of_them() -> None:
    study = make_study([{"code": "old"}, {"code": "new"}], {"val/loss": [0.5, 0.4]})
    (spec,) = plan(study, []).specs
    assert spec.goal == "Compare code: new and old, 5 seeds each"
    assert (list(draw_trials(spec, 2)), spec.trials, spec.seeds) == ([{"code": "new"}, {"code": "old"}], 2, 5)
    again = [{"code": c, "share": 0.1 * len(c)} for c in ("old", "newer") for _ in range(5)]
    assert plan(make_study(again, {"val/loss": [0.5, 0.4, 0.6, 0.3, 0.5] * 2}), []).specs == ()


def test_settings_that_differ_in_several_hyperparameters_are_counted() -> None:
    params = [{"code": "old", "layers": "two"}, {"code": "new", "layers": "three"}]
    (spec,) = plan(make_study(params, {"val/loss": [0.5, 0.4]}), []).specs
    assert spec.goal == "Compare 2 settings: 5 seeds each"
    assert list(draw_trials(spec, 2)) == [params[1], params[0]]


def test_a_search_repeats_only_its_best_setting() -> None:
    study = make_study([{"lr": 0.1}, {"lr": 0.2}], {"val/loss": [0.5, 0.4]}, seeds=[0, 1])
    goals = [spec.goal for spec in plan(study, []).specs]
    assert not any(goal.startswith("Compare") for goal in goals)
