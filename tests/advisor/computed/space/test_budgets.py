from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.computed.space import budgets, settings
from advisor.model.study import Study


def study(blocks: Any, *, each: int = 14, seed: int = 0, **fixed: Any) -> Study:
    """Return trials in blocks of (steps, lowest rate, highest rate); results depend on the length alone."""
    rng = np.random.default_rng(seed)
    params, curves, steps = [], [], []
    for length, low, high in blocks:
        for i in range(each):
            params.append({"lr": float(np.exp(rng.uniform(np.log(low), np.log(high)))), "wd": float(rng.uniform(0, 1))})
            params[-1] |= {name: values(length, i) for name, values in fixed.items()}
            at = np.arange(1, 11) * length // 10
            steps.append(at)
            curves.append(np.exp(-at / 2000) + 0.005 * rng.normal(size=10))
    return make_study(params, {"val/loss": curves}, steps={"val/loss": steps})


APART = (1000, 1e-4, 1e-2), (5000, 1e-3, 1e-1)


def test_only_trials_of_one_length_are_judged_if_others_were_tuned_apart() -> None:
    apart = study(APART)
    found = budgets.separately_tuned_lengths(apart)
    assert found is not None
    assert (found.steps_and_trials, found.judged_index) == (((1000, 14), (5000, 14)), 1)
    assert len(settings.read_settings(apart)) == 14
    assert len(settings.settings_of_all_lengths(apart)) == 28
    (decision,) = settings.search_space_decisions(apart)
    assert decision.text.endswith("The checks of the search space judge only the 14 trials of 5,000 steps.")
    assert verdict("space-shrink", apart).status != "fired"
    assert verdict("space-boundary", apart).status != "fired"


@pytest.mark.parametrize(
    ("blocks", "more"),
    [
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {}),
        (((1000, 1e-4, 1e-2), (1100, 1e-3, 1e-1)), {}),
        (((1000, 1e-4, 1e-2), (5000, 1e-3, 1e-1)), {"each": 4}),
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {"batch_size": lambda length, i: 320_000 // length}),
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {"rounds": lambda length, i: length // 500}),
    ],
    ids=["same rates", "same length", "few trials", "batch size", "another name of the length"],
)
def test_other_lengths_are_judged_together(blocks: Any, more: Any) -> None:
    assert budgets.separately_tuned_lengths(study(blocks, **more)) is None


def test_it_seldom_separates_trials_that_were_drawn_alike() -> None:
    alike = [study(((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), seed=seed) for seed in range(200)]
    assert sum(budgets.separately_tuned_lengths(s) is not None for s in alike) <= 0.08 * len(alike)
