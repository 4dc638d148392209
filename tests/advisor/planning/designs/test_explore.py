from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from planning_studies import QUIET, bowl, only_study
from studies import make_study

from advisor.model.spec import Parameter
from advisor.planning import price
from advisor.planning.base import initial_draft
from advisor.planning.designs.explore import missing_trial_count
from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.states import ExplorationEvidence

UNKNOWN = ExplorationEvidence(space="fine", effect="cannot be told", variation="fine")


def test_too_few_settings_near_an_end_are_followed_by_more_of_them() -> None:
    few = bowl(8, centre=1.0)
    spec = only_study(few, *QUIET)
    assert (spec.goal, spec.trials) == ("Try 4 more settings: lr 0.0049 to 0.1, weight_decay 1.6e-4 to 0.01", 4)
    assert price.estimate_cost(few, spec).sentence.startswith("This costs 8,000 steps: 4 runs of 2,000 steps")
    assert spec.searches_within(few.spec)
    assert [(n, p.high) for n, p in spec.searched.items()] == [(n, p.high) for n, p in few.searched.items()]
    assert only_study(bowl(12), *QUIET).sampler.kind == "adaptive"


@pytest.mark.parametrize(
    ("rates", "declared", "low", "high"),
    [
        ([1e-3, 3e-3], False, 3e-4, 3e-2),
        ([1e-5, 1e-3, 3e-3], False, 1e-5, 3e-2),
        ([1e-3, 3e-3], True, 1e-3, 3e-3),
        ([1e-4, 1e-3, 3e-3, 1e-2], False, 1e-4, 1e-2),
    ],
)
def test_few_tried_rates_are_no_range(rates: list[float], declared: bool, low: float, high: float) -> None:
    space = {"lr": Parameter(low=rates[0], high=rates[-1], scale="log")} if declared else None
    costs = [1.0 if rate != 3e-3 else 0.9 for rate in rates]
    spec = only_study(make_study([{"lr": r} for r in rates], {"val/loss": [[2.0, c] for c in costs]}, space=space), *QUIET)
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == pytest.approx((low, high))
    assert spec.goal.startswith("Sweep lr: " if (low, high) != (rates[0], rates[-1]) else "Try ")


def test_without_an_effect_more_trials_follow_up_to_the_number_that_would_show_one() -> None:
    rng = np.random.default_rng(0)
    for count, more in ((8, 8), (20, 7), (60, 0)):
        params = [{"lr": 10.0 ** rng.uniform(-4, -1), "wd": 10.0 ** rng.uniform(-6, -2)} for _ in range(count)]
        noise = make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * rng.normal()] for _ in range(count)]})
        spec = only_study(noise, *QUIET)
        assert spec.sampler.kind != "adaptive"
        assert (spec.trials if more else 0) == more
        assert "80 %" in spec.notes[-1]
        assert spec.goal.startswith(f"Try {more} more settings" if more else REPEAT_GOAL)


def test_failed_trials_are_no_data() -> None:
    few = bowl(20, centre=1.0)
    status = ["diverged" if t.index % 3 == 0 else t.status for t in few.trials]
    ends = [math.nan if s == "diverged" else float(c) for s, c in zip(status, few.costs, strict=True)]
    data = make_study([t.params for t in few.trials], {"val/loss": [[1.0, end] for end in ends]}, status=status)
    failing = replace(few, trials=data.trials, metrics=data.metrics, signals=data.signals)
    more = missing_trial_count(failing, initial_draft(failing), UNKNOWN, at_end=False)
    assert more == missing_trial_count(few, initial_draft(few), UNKNOWN, at_end=False) + 7


def test_an_open_comparison_gets_more_trials_of_all_values_instead_of_an_adaptive_search() -> None:
    rng = np.random.default_rng(0)
    params = [{"lr": 10 ** float(rng.uniform(-4, -2)), "norm": ("batch", "layer")[i % 2]} for i in range(16)]
    costs = [0.4 + 0.1 * (math.log10(float(p["lr"])) + 3) ** 2 + 0.005 * rng.normal() for p in params]
    for role, kind, trials in (("scientific", "halton", 11), ("nuisance", "adaptive", 12)):
        space = {"lr": Parameter(low=1e-4, high=1e-2, scale="log"), "norm": Parameter(role=role, choices=("batch", "layer"))}
        spec = only_study(make_study(params, {"val/loss": costs}, space=space), *QUIET)
        assert (spec.sampler.kind, spec.trials, set(spec.searched)) == (kind, trials, {"lr", "norm"})
