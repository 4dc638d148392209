from __future__ import annotations

from typing import Any

import pytest
from planning_studies import asks, bowl, only_study, reparametrised

from advisor.planning.sampling.halton import draw_trials

FINAL = 20_000
LONG = asks("rounds", "steps")


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ({"kind": "linear"}, {"kind": "linear", "decay_steps": 2000, "constant_steps": 18_000}),
        (
            {"kind": "linear", "warmup_steps": 200},
            {"kind": "linear", "warmup_steps": 200, "decay_steps": 1800, "constant_steps": 18_000},
        ),
        ({"kind": "cosine"}, {"kind": "cosine"}),
        (None, {"kind": "linear", "decay_steps": 2000, "constant_steps": 18_000}),
    ],
)
def test_a_few_long_runs_take_over_the_best_setting_and_the_schedule(schedule: Any, wanted: Any) -> None:
    study = bowl(final_train_steps=FINAL, schedule=schedule)
    spec = only_study(study, LONG)
    assert (spec.max_train_steps, spec.trials, spec.final_train_steps) == (FINAL, 3, None)
    assert spec.schedule == wanted
    assert spec.goal == "Lengthen training: 20,000 steps for each of the 3 best settings"
    assert list(draw_trials(spec, 3)) == [t.params for t in study.ranked()[:3]]
    assert "likely to transfer" in (spec.parameters["width"].why or "")


@pytest.mark.parametrize(
    ("trials", "seeds", "runs", "expensive"),
    [(60, 5, 3, False), (40, None, 3, False), (12, None, 1, False), (10, 2, 2, False), (6, None, 1, True)],
)
def test_long_runs_cost_no_more_than_the_last_round_or_say_so(trials: int, seeds: Any, runs: int, expensive: bool) -> None:
    spec = only_study(bowl(trials, final_train_steps=FINAL, seeds=seeds), LONG)
    assert (spec.trials, spec.seeds, len(spec.searched)) == (runs, None, 2 * int(runs > 1))
    note = f"This run takes {FINAL:,} steps, more than the whole last round ({trials * 2000:,} steps)"
    assert any(note in n for n in spec.notes) == expensive


def test_a_single_setting_has_one_long_run() -> None:
    study = bowl(1, final_train_steps=FINAL)
    spec = only_study(study, LONG)
    assert (spec.trials, spec.searched, spec.settings) == (1, {}, ())
    assert spec.goal.endswith("the best setting")


def test_long_runs_of_settings_with_a_learning_rate_that_is_computed() -> None:
    spec = only_study(reparametrised(final_train_steps=FINAL), LONG)
    assert set(spec.searched) == {"effective_lr", "momentum"}
    trials = list(draw_trials(spec, 3))
    assert len({t["lr"] for t in trials}) == 3
    assert all(t["lr"] == pytest.approx(t["effective_lr"] * (1 - t["momentum"])) for t in trials)  # type: ignore[operator]


def test_without_the_final_length_the_study_asks_for_it() -> None:
    assert any("final_train_steps" in note for note in only_study(bowl(), LONG).notes)


def test_short_runs_with_nothing_left_to_change_are_followed_by_long_ones() -> None:
    assert only_study(bowl(final_train_steps=FINAL)).max_train_steps == FINAL
