from __future__ import annotations

from typing import Any

import numpy as np
from promise import kept, studies
from studies import lacking, make_study, verdict

RULE = "adaptive-search"


def study(seed: int, *, adaptive: bool, count: int = 40) -> Any:
    rng = np.random.default_rng(seed)
    rates: list[float] = []
    costs: list[float] = []
    for i in range(count):
        near = rates[int(np.argmin(costs))] + 0.1 * rng.standard_normal() if adaptive and i >= 10 else rng.random()
        rates.append(float(np.clip(near, 0, 1)))
        costs.append((rates[-1] - 0.3) ** 2 + 0.01 * rng.standard_normal())
    return make_study([{"lr": float(10 ** (-4 + 3 * r))} for r in rates], {"val/loss": costs})


def example() -> Any:
    """From the eleventh trial on, each trial lies near the best one so far."""
    return study(0, adaptive=True)


def test_fires_where_later_trials_follow_good_ones_and_says_what_to_do_instead() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert finding.severity == "note"


def test_does_not_apply_to_a_study_that_asks_for_it() -> None:
    from dataclasses import replace

    from advisor.model.spec import Sampler

    made = example()
    spec = made.spec.model_copy(update={"sampler": Sampler(kind="adaptive")})
    assert lacking(RULE, replace(made, spec=spec))


def test_cannot_tell_from_few_trials() -> None:
    assert lacking(RULE, study(0, adaptive=False, count=6))


def test_keeps_its_promise_on_random_search() -> None:
    fired = [verdict(RULE, study(seed, adaptive=False)).status == "fired" for seed in studies(60)]
    assert kept(sum(fired), len(fired))
