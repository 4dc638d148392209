"""The next study if no rule recommends a change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_studies import AIM, QUIET, RULES, bowl, found, only_study
from studies import make_study

from advisor.model.change import FixParameter, RepeatTrial, SetField, SetRange
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning import closing, plan
from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.states import ExplorationEvidence
from advisor.report.build import build_report
from advisor.report.text.headline import headline


def test_exploitation_comes_before_repeats_that_a_note_asks_for() -> None:
    again = RepeatTrial(parameters={"lr": 0.01, "weight_decay": 1e-4, "width": 64}, seeds=5, why="w")
    made = plan(bowl(), [*QUIET, found("adopt", "exploitation", again, severity="note")], RULES)
    assert made.specs[0].sampler.kind == "adaptive"
    assert [d.rule for d in made.deferred] == ["adopt"]
    alone = plan(bowl(), [found("adopt", "exploitation", again, severity="note")], RULES)
    assert alone.specs[0].goal.startswith(REPEAT_GOAL)


def test_long_runs_wait_for_an_effect() -> None:
    assert only_study(bowl(final_train_steps=20_000)).max_train_steps == 20_000
    noise = bowl(spread=0.0, final_train_steps=20_000)
    assert only_study(noise).max_train_steps == 2000


def test_more_trials_that_a_rule_asks_for_state_their_power_if_nothing_can_be_told() -> None:
    more = found("under", "sampling", SetField(field="trials", value=20, why="w"), severity="note")
    spec = only_study(bowl(7), more)
    assert (spec.goal, spec.trials) == ("Try 20 more settings of lr, weight_decay", 20)
    assert spec.notes[0].startswith("These 20 trials")


def test_steps_are_saved_now_if_the_space_only_narrows() -> None:
    shorter = found("flat", "steps", SetField(field="max_train_steps", value=1000, why="w"), severity="note")
    narrow = found("shrink", "sampling", SetRange(parameter="lr", low=1e-3, high=1e-2, scale="log", why="w"))
    (spec,) = plan(bowl(), [narrow, shorter]).specs
    assert (spec.goal, spec.max_train_steps) == ("Narrow lr: 0.001 to 0.01", 1000)
    wide = found("edge", "boundary", SetRange(parameter="lr", low=1e-5, high=0.1, scale="log", why="w"))
    first, second = plan(bowl(), [wide, shorter]).specs
    assert (first.max_train_steps, second.max_train_steps) == (2000, 1000)


def test_no_effect_is_reported_only_if_the_analysis_of_effects_could_run() -> None:
    study = bowl()
    again = study.spec.model_copy(update={"trials": 1})
    unknown = ExplorationEvidence(space="fine", effect="cannot be told", variation="fine")
    assert "No such difference was found" in closing._with_power_note(study, again, unknown).notes[-1]
    same = replace(study, trials=tuple(replace(t, params={"lr": 0.01, "weight_decay": 1e-4}) for t in study.trials))
    assert closing._with_power_note(same, again, unknown) == again


def compared(seed: int) -> Study:
    """Two activations, one clearly better, with learning rates around the optimum of 0.001."""
    rng = np.random.default_rng(seed)
    space = {
        "activation": Parameter(role="scientific", choices=("relu", "gelu")),
        "lr": Parameter(low=1e-4, high=1e-2, scale="log"),
    }
    params = [{"activation": ("relu", "gelu")[i % 2], "lr": float(10 ** rng.uniform(-4, -2))} for i in range(24)]
    ends = [
        0.4 + 0.07 * (p["activation"] == "relu") + 0.1 * np.log10(p["lr"] / 1e-3) ** 2 + 0.006 * rng.normal() for p in params
    ]
    data = make_study(params, {"val/loss": [[2.0, 1.0, end] for end in ends]})
    spec = StudySpec(study="s", objective=AIM, parameters=space, trials=24, max_train_steps=2000)
    return replace(data, spec=spec, inferred={})


ANSWERED = found("effect", "sampling", FixParameter(parameter="activation", value="gelu", why="gelu is better"))


@pytest.mark.parametrize("seed", [0, 4, 5, 7])
def test_on_a_known_plateau_the_best_setting_is_repeated(seed: int) -> None:
    spec = only_study(compared(seed), ANSWERED, *QUIET)
    assert spec.goal.startswith("Stop searching and repeat the best setting: 5 seeds")
    assert (spec.seeds, dict(spec.searched)) == (5, {})
    assert (spec.parameters["activation"].value, spec.parameters["activation"].why) == ("gelu", "gelu is better")
    assert "More search would hardly help" in spec.notes[0]


@pytest.mark.parametrize("seed", [2, 6])
def test_where_the_best_trial_is_not_at_the_optimum_the_search_goes_on(seed: int) -> None:
    assert only_study(compared(seed), ANSWERED, *QUIET).goal == "Fix activation at gelu"


def test_an_unsettled_space_is_searched_on_although_a_model_expects_no_gain() -> None:
    wide = found("space-infeasible", "infeasible", SetRange(parameter="lr", low=1e-4, high=5e-3, scale="log", why="w"))
    assert only_study(compared(0), ANSWERED, wide, *QUIET).searched


def test_a_hopeless_search_whose_best_setting_was_repeated_is_no_study() -> None:
    """24 settings without any difference beyond the variation between seeds, the best one repeated 5 times."""
    rng = np.random.default_rng(5)
    space = {"lr": Parameter(low=1e-4, high=1e-1, scale="log"), "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log")}
    params = [{n: p.value_at_position(float(rng.random())) for n, p in space.items()} for _ in range(24)]
    ends = [0.5 + 0.01 * float(rng.random()) for _ in params]
    best = int(np.argmin(ends))
    ends += [ends[best] + 0.02 * (1 + i % 2) for i in range(5)]
    data = make_study(params + [params[best]] * 5, {"val/loss": [[2.0, 1.0, end] for end in ends]}, seeds=list(range(29)))
    spec = StudySpec(study="s", objective=AIM, parameters=space, trials=24, max_train_steps=2000)
    made = replace(data, spec=spec, inferred={})
    more = found("under", "sampling", SetField(field="trials", value=48, why="w"), severity="note")
    planned = plan(made, [more], RULES)
    assert planned.specs == ()
    assert planned.stop.startswith("More search would hardly help")
    assert [d.rule for d in planned.deferred] == ["under"]
    report = build_report(made, [more], (), planned.deferred, rules=RULES, stop=planned.stop)
    assert str(headline(report)).startswith("Stop searching: measure the best setting on ")


def test_a_batch_size_that_is_fixed_now_is_tuned_for_before_repeats() -> None:
    rng = np.random.default_rng(0)
    params = [{"batch_size": 2 ** (2 + i % 4), "lr": 10.0 ** rng.uniform(-4, -1)} for i in range(24)]
    ends = [0.9 - 0.1 * (i % 4) + 0.05 * (np.log10(float(p["lr"])) + 2.5) ** 2 for i, p in enumerate(params)]
    spec = only_study(make_study(params, {"val/loss": [[1.0, 0.95, end] for end in ends]}), *QUIET)
    assert spec.goal == "Fix batch_size at 32 and tune lr"
    assert (spec.parameters["batch_size"].value, list(spec.searched), spec.trials) == (32, ["lr"], 10)


@pytest.mark.parametrize(("declared", "noted"), [(200, True), (2000, False), (None, False)])
def test_trials_that_ran_much_longer_than_declared_are_noted(declared: int | None, noted: bool) -> None:
    made = bowl(12)
    spec = made.spec.model_copy(update={"max_train_steps": declared})
    ends = [int(made.cost_curve(t).steps[-1]) for t in made.trials]
    assert set(ends) == {2000}
    (first, *_) = plan(replace(made, spec=spec), QUIET).specs
    assert any("The trials ran to step 2,000, which is far from the max_train_steps" in note for note in first.notes) == noted


def test_long_runs_of_the_best_settings_come_before_repeats_of_a_short_one() -> None:
    again = RepeatTrial(parameters={"lr": 0.01, "weight_decay": 1e-4, "width": 64}, seeds=5, why="w")
    made = plan(bowl(final_train_steps=20_000), [found("adopt", "exploitation", again, severity="note")], RULES)
    assert made.specs[0].max_train_steps == 20_000
    assert [d.rule for d in made.deferred] == ["adopt"]


def test_two_rates_are_no_range_to_tune_a_batch_size_in() -> None:
    params = [{"batch_size": 2 ** (2 + i % 4), "lr": (5e-4, 1e-3)[i // 4 % 2]} for i in range(24)]
    ends = [0.9 - 0.1 * (i % 4) - 0.02 * (i // 4 % 2) + 0.001 * (i // 8) for i in range(24)]
    spec = only_study(make_study(params, {"val/loss": [[1.0, 0.95, end] for end in ends]}), *QUIET)
    assert spec.goal == "Fix batch_size at 32 and tune lr"
    rate = spec.parameters["lr"]
    assert rate.high >= 2e-3
