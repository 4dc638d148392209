from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, verdict

from advisor.model.spec import Parameter

RULE = "space-interaction"
SPACE = {
    "learning_rate": Parameter(low=1e-4, high=1e-1, scale="log"),
    "momentum": Parameter(low=0.0, high=0.99),
    "norm": Parameter(choices=("batch", "layer")),
}


def study(count: int, cost: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    params = [{n: p.draw(u) for (n, p), u in zip(SPACE.items(), rng.random(3).tolist(), strict=True)} for _ in range(count)]
    at = [{n: float(p.to_positions([row[n]])[0]) for n, p in SPACE.items()} for row in params]
    return make_study(params, {"val/loss": [cost(row, rng) for row in at]}, space=SPACE)


def valley(at: dict[str, float], rng: np.random.Generator) -> float:
    """What counts is the learning rate times something that grows with momentum."""
    return (at["learning_rate"] + at["momentum"] - 1) ** 2 + 0.02 * rng.standard_normal()


def additive(at: dict[str, float], rng: np.random.Generator) -> float:
    return (at["learning_rate"] - 0.6) ** 2 + 0.3 * at["momentum"] + 0.1 * at["norm"] + 0.05 * rng.standard_normal()


def example() -> Any:
    """A momentum whose best value depends on the learning rate."""
    return study(50, valley)


def test_fires_for_a_valley_across_two_and_advises_to_tune_both() -> None:
    (finding,) = verdict(RULE, example()).findings
    assert finding.subject == "learning_rate × momentum"
    assert (finding.severity, finding.goal) == ("note", "sampling")
    assert finding.confidence >= 0.9


def test_the_learning_rate_follows_the_batch_size_which_throughput_decides() -> None:
    rng = np.random.default_rng(0)
    at = rng.random((50, 2))
    params = [{"learning_rate": 10 ** (3 * a - 4), "batch_size": round(16 * 2 ** (6 * b))} for a, b in at.tolist()]
    costs = [(a - b) ** 2 + 0.01 * rng.standard_normal() for a, b in at.tolist()]
    (finding,) = verdict(RULE, make_study(params, {"val/loss": costs})).findings
    assert finding.action == "Tune learning_rate again if you change batch_size: the best value depends on it."


def test_fires_for_a_category_that_turns_the_effect_round() -> None:
    made = study(50, lambda at, rng: (2 * at["norm"] - 1) * at["momentum"] + 0.05 * rng.standard_normal())
    assert "momentum × norm" in {f.subject for f in verdict(RULE, made).findings}


def test_quiet_where_effects_add_up_even_on_another_scale() -> None:
    assert verdict(RULE, study(50, additive)).status == "quiet"
    grown = study(50, lambda at, rng: math.exp(4 * additive(at, rng)))
    assert verdict(RULE, grown).status == "quiet"


def rising(at: dict[str, float], rng: np.random.Generator) -> float:
    """A momentum of 0 is best with any learning rate, but its effect grows with the learning rate."""
    return 1 - (1 - 0.25 * at["momentum"]) / (1 + math.exp(-9 * (at["learning_rate"] - 0.75))) + 0.015 * rng.standard_normal()


def plateau(at: dict[str, float], rng: np.random.Generator) -> float:
    """Only on the plateau of the learning rate do ranks depend on the small effect of momentum."""
    distance = max(abs(at["learning_rate"] - 0.55) - 0.12, 0) / 0.15
    return 2.2 * (1 - math.exp(-0.5 * distance**2)) + 0.05 * at["momentum"] + 0.01 * rng.standard_normal()


def cliff(at: dict[str, float], rng: np.random.Generator) -> float:
    beyond = at["learning_rate"] > 0.85
    return (2.3 if beyond else 2 * math.exp(-6 * at["learning_rate"])) + 0.02 * (1 + 3 * beyond) * rng.standard_normal()


@pytest.mark.parametrize("cost", [rising, plateau, cliff])
def test_quiet_if_the_best_value_stays_although_the_effect_in_ranks_changes(cost: Any) -> None:
    wrong = [verdict(RULE, study(24, cost, seed)).status == "fired" for seed in studies(90)]
    assert kept(sum(wrong), len(wrong))


def test_cannot_tell_from_few_settings_or_a_single_hyperparameter() -> None:
    assert "at least 8 are needed" in str(verdict(RULE, study(5, valley)).reason)
    assert "may be noise" in lacking(RULE, study(20, lambda at, rng: rng.standard_normal()))
    only = make_study([{"lr": 0.1 * (i + 1)} for i in range(20)], {"val/loss": list(np.arange(20.0))})
    assert "no pair" in lacking(RULE, only)


@pytest.mark.parametrize("count", [8, 16, 30])
def test_keeps_its_promise_where_effects_add_up_and_some_trials_fail(count: int) -> None:
    def cost(at: dict[str, float], rng: np.random.Generator) -> float:
        return math.nan if at["learning_rate"] > 0.9 else additive(at, rng)

    wrong = [verdict(RULE, study(count, cost, seed)).status == "fired" for seed in studies(70)]
    assert kept(sum(wrong), len(wrong))


@pytest.mark.parametrize("count", [8, 24])
def test_keeps_its_promise_where_there_is_only_noise(count: int) -> None:
    wrong = [
        verdict(RULE, study(count, lambda at, rng: round(rng.standard_normal(), 1), seed)).status == "fired"
        for seed in studies(70)
    ]
    assert kept(sum(wrong), len(wrong))


def test_thousands_of_trials() -> None:
    assert [f.subject for f in verdict(RULE, study(3000, valley)).findings] == ["learning_rate × momentum"]
