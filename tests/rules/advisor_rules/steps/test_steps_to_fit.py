"""The rule `steps-to-fit`."""

from __future__ import annotations

import numpy as np
import pytest
from studies import lacking, make_study, verdict

from advisor.model.spec import Objective
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.model.study import Study
from advisor.planning import plan
from advisor.planning.designs.initial import FirstStudyRequest, first_study_of_project
from advisor.planning.designs.steps_initial import learning_rate_grid

STEPS = np.arange(0, 4000, 10)
AIM = Objective(metric="val/loss", direction="minimize")
BASE = first_study_of_project(FirstStudyRequest(study="s", objective=AIM, optimizer="sgd", trials=12))


def sweep(halves: list[float], failed: int = 0, status: str = "diverged") -> Study:
    """Return a trial for each learning rate of the grid. Its loss halves every `halves[i]` steps. The last `failed` trials fail."""
    rng = np.random.default_rng(1)
    spec = learning_rate_grid(BASE, "learning_rate", 1e-3, 10.0, 4000)
    losses = [2.3 * 0.5 ** (STEPS / h) * np.exp(0.1 * rng.normal(size=len(STEPS))) for h in halves]
    for loss in losses[len(losses) - failed :]:
        loss[5:] = np.nan
    data = make_study(
        [{"learning_rate": r, "momentum": 0.9} for r in spec.parameters["learning_rate"].choices or ()],
        {"val/loss": [[2.3, float(np.nanmin(x))] for x in losses], "train/loss": losses},
        steps={"train/loss": [STEPS] * len(losses), "val/loss": [[0, 3990]] * len(losses)},
        status=["complete"] * (len(losses) - failed) + [status] * failed,
    )
    return Study(spec=spec, trials=data.trials, metrics=data.metrics, signals=data.signals)


INSIDE = [2000.0, 1200, 600, 300, 150, 200, 500, 900]


def example() -> Study:
    return sweep(INSIDE)


def test_the_steps_of_the_fastest_trial_are_proposed() -> None:
    study = example()
    result = verdict("steps-to-fit", study)
    (finding,) = result.findings
    wanted = 150 * np.log2(100)  # halves until 1 % is left
    (spec,) = plan(study, [result]).specs
    assert spec.max_train_steps == pytest.approx(wanted, rel=0.15)
    assert spec.evaluate_every == spec.max_train_steps // 50
    assert spec.searched.keys() == {"learning_rate", "momentum"}
    assert (spec.round, spec.trials, spec.probe, spec.baseline) == (2, 12, None, None)
    assert finding.confidence >= 0.9
    assert parse_study_file(format_study_file(spec)) == spec


@pytest.mark.parametrize(
    ("halves", "low", "high"), [(INSIDE[4:] + INSIDE[:4], 1e-4, 1), ([*INSIDE[:4], 200, 150, 120, 90], 1e-2, 100)]
)
def test_the_grid_moves_if_the_fastest_lies_at_its_end(halves: list[float], low: float, high: float) -> None:
    halves = sorted(halves, reverse=high > 1)
    study = sweep(halves)
    (spec,) = plan(study, [verdict("steps-to-fit", study)]).specs
    rates = spec.parameters["learning_rate"].choices or ()
    assert (spec.probe, spec.max_train_steps) == ("steps", 4000)
    assert (rates[0], rates[-1]) == (pytest.approx(low), pytest.approx(high))
    assert spec.baseline is not None
    assert spec.baseline.max_train_steps is None


@pytest.mark.parametrize("status", ["diverged", "infeasible"])
def test_rates_above_the_fastest_that_fail_bound_it(status: str) -> None:
    study = sweep([2000, 1200, 600, 300, 200, 150, 100, 80], failed=2, status=status)
    (spec,) = plan(study, [verdict("steps-to-fit", study)]).specs
    assert spec.max_train_steps == pytest.approx(150 * np.log2(100), rel=0.15)


def test_if_nothing_fits_it_asks_for_more_steps() -> None:
    study = sweep([4000.0] * 8)
    result = verdict("steps-to-fit", study)
    assert "4,000 steps" in result.findings[0].message
    (spec,) = plan(study, [result]).specs
    assert (spec.probe, spec.max_train_steps) == ("steps", 16_000)


def test_only_such_a_sweep_is_judged() -> None:
    plain = make_study([{"lr": 0.1}] * 2, {"val/loss": [[1.0, 0.5]] * 2})
    assert lacking("steps-to-fit", plain)


def test_without_a_training_loss_it_cannot_tell() -> None:
    study = sweep(INSIDE)
    bare = Study(spec=study.spec, trials=study.trials, metrics={"val/loss": study.metrics["val/loss"]})
    assert lacking("steps-to-fit", bare)
