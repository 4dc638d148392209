"""The sweep of the learning rate after a single setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planning_studies import found, only_study
from studies import make_study

from advisor.model.change import Advise, RunPlan, SetField
from advisor.model.study import Study
from advisor.planning import plan, price
from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.sampling.halton import draw_trials


def run(params: dict[str, Any], runs: int = 1) -> Study:
    made = make_study([params] * runs, {"val/loss": [[1.0, 0.5, 0.4]] * runs}, seeds=list(range(runs)))
    return replace(made, spec=made.spec.model_copy(update={"max_train_steps": 20_000}))


@pytest.mark.parametrize("runs", [1, 6])
@pytest.mark.parametrize("name", ["lr", "learning_rate", "optimizer.lr"])
def test_one_setting_is_followed_by_a_sweep_at_a_tenth_of_the_length(name: str, runs: int) -> None:
    study = run({name: 1e-3, "batch_size": 64, "epochs": 30}, runs)
    spec = only_study(study)
    assert spec.goal == f"Sweep {name}: 1e-4 to 0.01, 2,000 of the full 20,000 steps each"
    assert (spec.max_train_steps, spec.evaluate_every, spec.final_train_steps, spec.trials) == (2000, 100, 20_000, 10)
    assert any("shorten both in proportion" in note for note in spec.notes)
    assert (list(spec.searched), spec.searched[name].scale) == ([name], "log")
    assert (spec.parameters["batch_size"].value, spec.parameters["epochs"].value) == (64, 3)
    assert price.estimate_cost(study, spec).sentence.startswith("This costs 20,000 steps: 10 runs of 2,000 steps")


def test_where_the_loss_blew_up_early_lower_rates_are_swept_and_nothing_else_is_planned() -> None:
    steps = list(range(200))
    loss = [2.3, 2.4, *[90.0] * 40, *[2.3] * 158]
    made = make_study(
        [{"lr": 10.0}], {"val/loss": [loss], "train/loss": [loss]}, steps={"val/loss": [steps], "train/loss": [steps]}
    )
    study = replace(made, spec=made.spec.model_copy(update={"max_train_steps": 200}))
    warmup = found("early", "stability", RunPlan(plan="warmup", why="w"), severity="critical")
    planned = plan(study, [warmup])
    assert [s.goal for s in planned.specs] == ["Sweep lr: 0.01 to 5, 20 of the full 200 steps each"]
    assert [d.rule for d in planned.deferred] == ["early"]


@pytest.mark.parametrize("runs", [1, 3])
def test_if_every_run_of_the_setting_diverged_lower_rates_are_swept(runs: int) -> None:
    made = make_study(
        [{"lr": 0.1, "momentum": 0.9}] * runs,
        {"val/loss": [[5.0, float("nan")]] * runs},
        status=["diverged"] * runs,
        seeds=list(range(runs)),
    )
    spec = only_study(replace(made, spec=made.spec.model_copy(update={"max_train_steps": 700})))
    assert spec.goal == "Sweep lr: 1e-4 to 0.05, 140 of the full 700 steps each"
    assert (spec.parameters["momentum"].value, spec.trials) == (0.9, 10)


def test_several_rates_keep_their_ratio() -> None:
    spec = only_study(run({"lr_g": 1e-4, "lr_d": 4e-4}))
    assert len(spec.searched) == 1
    assert all(t["lr_d"] == pytest.approx(4 * float(t["lr_g"])) for t in draw_trials(spec, 5))


@pytest.mark.parametrize("params", [{"batch_size": 64}, {}])
def test_without_a_learning_rate_the_study_asks_to_log_it(params: dict[str, Any]) -> None:
    spec = only_study(run(params))
    assert spec.goal.startswith(REPEAT_GOAL)
    assert "Log the learning rate" in spec.notes[0]


def test_the_sweep_precedes_other_changes_but_not_a_broken_pipeline() -> None:
    longer = found("still", "steps", SetField(field="max_train_steps", value=90_000, why="w"))
    bug = found("bug", "pipeline", Advise(text="Fix the loader."), severity="critical")
    made = plan(run({"lr": 1e-3}), [longer, bug])
    assert [s.goal.partition(":")[0] for s in made.specs] == ["Search again once this is done", "Sweep lr"]
    assert "still" in [d.rule for d in made.deferred]  # how long to train depends on the rate


def test_repeats_of_a_later_round_are_not_swept() -> None:
    made = run({"lr": 1e-3}, 5)
    later = replace(made, spec=made.spec.model_copy(update={"round": 2, "parent": "s"}))
    assert not any(s.goal.startswith("Sweep") for s in plan(later, []).specs)


def test_a_run_that_became_worse_early_is_followed_by_runs_that_show_it() -> None:
    """At a tenth of the length, every rate would look as if it went on improving."""
    worse = [1.0, 0.4, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.9]
    made = make_study([{"lr": 1e-3}], {"val/loss": [worse]}, steps=[1000 * (i + 1) for i in range(10)])
    spec = only_study(made)
    assert spec.max_train_steps == 4000
    assert spec.final_train_steps == 10_000


def test_no_training_ends_before_its_last_step() -> None:
    """1,200 of 46,850 steps are 1.28 of 50 epochs."""
    spec = run({"lr": 1e-3, "num_epochs": 50}).spec.model_copy(update={"max_train_steps": 46_850})
    shorter = SetField(field="max_train_steps", value=1200, why="w").apply(spec)
    assert shorter.parameters["num_epochs"].value == 2


def test_a_warmup_in_steps_is_shortened_with_the_training() -> None:
    spec = only_study(run({"lr": 1e-3, "warmup_steps": 2000, "warmup_ratio": 0.1}))
    assert (spec.parameters["warmup_steps"].value, spec.parameters["warmup_ratio"].value) == (200, 0.1)
