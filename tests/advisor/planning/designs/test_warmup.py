"""The plan `warmup`: from an unstable study to the warmup before the baseline, on trainings whose truth is known."""

from __future__ import annotations

import math
from pathlib import Path

import planning_loop as loop
import pytest
from studies import make_study

from advisor.model.change import RunPlan
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning.base import initial_draft
from advisor.planning.designs.warmup import design, warmup_candidates
from advisor.planning.sampling.halton import draw_trials

REPEAT_BEST_FIRST_REASON = StudySpec(
    study="bowl",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"learning_rate": Parameter(low=1e-3, high=0.2, scale="log")},
    trials=14,
    sampler=Sampler(seed=3),
    max_train_steps=6000,
    evaluate_every=100,
)


@pytest.mark.parametrize(
    ("steps", "wanted"), [(1_000_000, (10, 200, 5000, 100_000)), (2000, (10, 30, 70, 200)), (100, (1, 2, 5, 10)), (25, (1, 2))]
)
def test_warmups_lie_evenly_in_their_orders_of_magnitude(steps: int, wanted: tuple[int, ...]) -> None:
    assert warmup_candidates(steps) == wanted


def test_an_unstable_study_gets_the_shortest_warmup_that_works(database: str, tmp_path: Path) -> None:
    report, search = loop.round_of(REPEAT_BEST_FIRST_REASON, database, tmp_path)
    assert search.probe == "warmup", [f.message for f in report.findings]
    assert search.goal.startswith("Find the shortest warmup")
    rates = [float(t["learning_rate"]) for t in draw_trials(REPEAT_BEST_FIRST_REASON, 14)]
    unstable = 10 * min(r for r in rates if math.isnan(loop.descend({"learning_rate": r}, 6000)[-1]))
    assert search.parameters["learning_rate"].value == pytest.approx(unstable, rel=0.01)
    assert search.max_train_steps == 1800
    lengths = search.parameters["warmup_steps"].choices or ()
    # Each warmup once: the sequence of four trials over four choices misses none, whatever the seed.
    for seed in range(10):
        drawn = draw_trials(search.model_copy(update={"sampler": Sampler(seed=seed)}), 4)
        assert sorted(int(t["warmup_steps"]) for t in drawn) == list(lengths)
    assert parse_study_file(format_study_file(search)) == search

    report, after = loop.round_of(search, database, tmp_path)
    (found,) = [f for f in report.findings if f.rule == "warmup-shortest"]
    runs = {w: loop.descend({"learning_rate": unstable, "warmup_steps": w}, 1800) for w in lengths}
    stable = [w for w, losses in runs.items() if losses[-1] < 1 and max(losses) < 2]
    assert after.parameters["warmup_steps"].value == stable[0], found.message
    assert after.max_train_steps == max(6000 + stable[0], 20 * stable[0])
    assert after.parameters["learning_rate"].high == pytest.approx(unstable, rel=0.01)
    assert (after.probe, after.baseline, after.round, after.parent) == (None, None, 3, search.study)
    assert (after.trials, after.evaluate_every) == (14, 100)

    report, _ = loop.round_of(after, database, tmp_path)
    finite = [v for r in rates if not math.isnan(v := loop.descend({"learning_rate": r}, 6000)[-1])]
    assert report.best.value < min(finite) / 2


@pytest.mark.parametrize(("optimizer", "peak"), [("sgd", 5.7), ("lars", 19.0)])
def test_a_warmup_need_not_make_rates_stable_that_are_far_from_usual(optimizer: str, peak: float) -> None:
    params = [{"lr": 10.0**-i, "optimizer": optimizer} for i in range(5)]
    study = make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(5)]}, every=1000)
    request = RunPlan(plan="warmup", numbers={"unstable_learning_rate": 1.9}, why="unstable")
    spec = design(request, study, initial_draft(study))
    assert isinstance(spec, StudySpec)
    assert spec.parameters["lr"].value == peak
    assert spec.starts_from == {"unstable_learning_rate": 1.9, "times": round(peak / 1.9, 2)}
