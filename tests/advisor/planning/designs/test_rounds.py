"""What the long runs of the last round may cost, and that none of them repeats another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from studies import make_study

from advisor.model.change import RunPlan
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning import base
from advisor.planning.designs import rounds

SHORT, FINAL = 1000, 10_000
RATE = Parameter(low=1e-4, high=1e-1, scale="log")


def short_runs(trials: int, rate: Parameter = RATE, **more: Any) -> Study:
    """A study of short runs before one of `FINAL` steps each."""
    space = {"learning_rate": rate, "depth": Parameter(choices=(2, 4))}
    rng = np.random.default_rng(0)
    params = [
        {"learning_rate": rate.value or rate.from_unit(float(u)), "depth": int(rng.choice([2, 4]))}
        for u in rng.random(trials)
    ]
    found = make_study(params, {"val/loss": [[1.0, 0.5 + 0.01 * i] for i in range(trials)]})
    spec = StudySpec(
        study="s",
        objective=Objective(metric="val/loss", direction="minimize"),
        parameters=space,
        trials=trials,
        max_train_steps=SHORT,
        final_train_steps=FINAL,
        **more,
    )
    return Study(spec=spec, trials=found.trials, metrics=found.metrics, signals=found.signals)


def long_runs(study: Study) -> StudySpec:
    made = rounds.design(RunPlan(plan="rounds", why="w"), study, base.base(study))
    assert isinstance(made, StudySpec)
    return made


@pytest.mark.parametrize(
    ("trials", "seeds", "runs", "dear"),
    [(40, None, 3, False), (10, None, 1, False), (10, 2, 2, False), (6, None, 1, True)],
)
def test_long_runs_cost_no_more_than_the_round_before_or_say_so(
    trials: int, seeds: int | None, runs: int, dear: bool
) -> None:
    made = long_runs(short_runs(trials, seeds=seeds))
    assert made.trials == runs
    said = f"The {FINAL:,} steps of this run exceed the {trials * SHORT:,} of the whole last round"
    assert any(said in note for note in made.notes) == dear


def test_without_a_learning_rate_to_search_there_is_one_long_run() -> None:
    made = long_runs(short_runs(40, Parameter(role="fixed", value=0.01)))
    assert (made.trials, made.searched) == (1, {})
    assert "1 long run of" in made.goal
