"""After a change of the validation data, the next study is judged by its own trials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planning_studies import QUIET, RULES, assert_ready_to_run, bowl, found
from studies import make_study

from advisor.analysis import analyze_study
from advisor.model.change import Advise, SetRange
from advisor.model.study import Study
from advisor.planning import budget, new_scores, plan
from advisor.report.text import headline

T = np.linspace(0, 1, 60)


def noisy() -> Study:
    """Equal trials, ranked by noise between evaluations that training does not share."""
    rng = np.random.default_rng(4)
    params = [{"lr": float(10 ** rng.uniform(-4, -2))} for _ in range(12)]
    valid = [1 + np.exp(-8 * T) + 0.1 * rng.standard_normal(60) for _ in params]
    train = [np.exp(-T) + 1e-3 * rng.standard_normal(60) for _ in params]
    return make_study(params, {"val/loss": valid, "train/loss": train})


MORE = Advise(text="Evaluate on more validation data.", new_scores=True)


def test_the_best_settings_are_trained_again_if_the_search_does_not_change() -> None:
    study = bowl(24)
    made = plan(study, [*QUIET, found("noise", "efficiency", MORE, action=MORE.text)], RULES)
    (spec,) = made.specs
    assert_ready_to_run(spec)
    assert made.new_scores
    best = [t.params["lr"] for t in study.ranked()[: new_scores.MAX_SETTINGS_TRAINED_AGAIN]]
    assert [s["lr"] for s in spec.settings] == best
    assert spec.trials == len(best)
    assert MORE.text in spec.notes
    assert new_scores.ANALYZE_ALONE_NOTE in spec.notes
    assert not any("the 24 so far" in note for note in spec.notes)


def test_policies_are_compared_over_more_episodes() -> None:
    study = replace(bowl(24), kind="reinforcement-learning")
    made = plan(study, [*QUIET, found("noise", "efficiency", MORE, action=MORE.text)], RULES)
    (spec,) = made.specs
    assert spec.goal == "Train the 5 best settings again: the evaluation changes"
    assert new_scores.REEVALUATE_POLICIES_NOTE in spec.notes
    assert "validation data" not in str(spec.parameters)


def test_settings_are_chosen_in_the_order_of_the_ranking() -> None:
    """Late evaluations order the settings that share a best value; equal settings at the end are left out together."""
    good, lucky, other = [0.5, 0.9, 0.9, 0.9], [0.9, 0.8, 0.8, 0.8], [0.7, 0.8, 0.8, 0.8]
    params = [{"lr": 0.1 * (i + 1)} for i in range(9)]
    curves = [lucky, good, lucky, good, *[other] * 5]
    study = make_study(params, {"val/acc": curves}, objective="val/acc", direction="maximize")
    chosen = [t.name for t in new_scores.best_trial_per_setting(study)]
    assert chosen == ["trial-1", "trial-3", "trial-0", "trial-2"] == [t.name for t in study.ranked()[:4]]
    equal = make_study(params, {"val/acc": [good] * 9}, objective="val/acc", direction="maximize")
    assert len(new_scores.best_trial_per_setting(equal)) == new_scores.MAX_SETTINGS_TRAINED_AGAIN


def test_advice_of_a_note_changes_no_study() -> None:
    made = plan(bowl(24), [*QUIET, found("noise", "efficiency", MORE, action=MORE.text, severity="note")], RULES)
    assert not made.new_scores
    assert made.specs[0].settings == ()


def test_earlier_trials_do_not_count_for_a_search_and_the_best_setting_is_one_of_its_trials() -> None:
    study = bowl(24)
    cut = found("wide", "sampling", SetRange(parameter="lr", low=3e-4, high=3e-2, scale="log", why="w"))
    noise = found("noise", "efficiency", MORE, action=MORE.text)
    counted, *_ = budget.with_trial_numbers(study, plan(study, [cut]))
    following = plan(study, [cut, noise])
    alone, *_ = budget.with_trial_numbers(study, following)
    assert following.new_scores
    assert (alone.trials or 0) > (counted.trials or 0)
    spec = new_scores.with_best_setting_first(study, alone)
    assert_ready_to_run(spec)
    assert len(spec.settings) == spec.trials == alone.trials
    assert spec.settings[0] == {n: study.ranked()[0].params[n] for n in spec.searched}
    assert budget.trial_number_reason(study, spec) == new_scores.REPEAT_BEST_FIRST_REASON


def test_the_report_says_that_scores_are_not_comparable() -> None:
    report = analyze_study(noisy(), rules=RULES)
    assert str(headline.headline(report)).startswith("Evaluate on about 7 times as many validation examples")
    assert new_scores.NOT_COMPARABLE_NOTE in str(headline.headline(report))
    to_do = report.to_html().partition('<ol class="todo">')[2].partition("</ol>")[0]
    assert new_scores.NOT_COMPARABLE_NOTE in to_do
