from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from promise import studies
from studies import lacking, make_study, verdict

from advisor.model.change import SetRange
from advisor.model.spec import Parameter
from advisor.planning import plan
from advisor.stats.importance import axis_coordinates
from advisor_rules.space import space_scale

RULE = "space-scale"
LINEAR = {
    "learning_rate": Parameter(low=1e-3, high=1.0),
    "dropout": Parameter(low=0.0, high=0.5),
    "optimizer": Parameter(choices=("sgd", "adam")),
}

NOISE = {"noise": Parameter(low=1e-3, high=1.0, scale="log"), "dropout": Parameter(low=0.0, high=0.5)}


def study(cost: Any, count: int = 48, seed: int = 0, space: Any = None, **more: Any) -> Any:
    space = space or LINEAR
    rng = np.random.default_rng(seed)
    params = [
        {n: p.draw(u) for (n, p), u in zip(space.items(), rng.random(len(space)).tolist(), strict=True)} for _ in range(count)
    ]
    return make_study(params, {"val/loss": [cost(row, rng) for row in params]}, space=space, **more)


def by_decades(row: dict[str, Any], rng: np.random.Generator) -> float:
    """The best learning rate is 0.002."""
    return (math.log10(row["learning_rate"]) + 2.7) ** 2 + row["dropout"] + 0.1 * rng.standard_normal()


def by_value(row: dict[str, Any], rng: np.random.Generator) -> float:
    return 4 * (row["learning_rate"] - 0.4) ** 2 + row["dropout"] + 0.1 * rng.standard_normal()


def example() -> Any:
    """A learning rate on a linear scale whose results follow its logarithm."""
    return study(by_decades)


def test_fires_for_a_linear_range_that_results_use_by_decades_and_searches_the_logarithm() -> None:
    made = example()
    said = verdict(RULE, made)
    (finding,) = said.findings
    assert (finding.subject, finding.severity, finding.goal) == ("learning_rate", "warning", "boundary")
    assert finding.confidence >= 0.95
    (spec, *_) = plan(made, [said]).specs
    assert spec.parameters["learning_rate"].scale == "log"


def test_fires_for_the_reverse() -> None:
    (finding,) = verdict(
        RULE, study(lambda row, rng: by_value({**row, "learning_rate": row["noise"]}, rng), space=NOISE)
    ).findings
    (change,) = finding.changes
    assert change.scale == "linear"
    assert "the value of the hyperparameter, not its logarithm" in finding.message


def test_leaves_a_learning_rate_on_a_log_scale() -> None:
    space = {**LINEAR, "learning_rate": Parameter(low=1e-6, high=1e-4, scale="log")}
    assert verdict(RULE, study(lambda row, rng: -1e4 * row["learning_rate"], space=space)).status == "quiet"


def test_a_linear_range_from_zero_starts_at_a_decade_where_it_must_be_positive() -> None:
    space = {**LINEAR, "learning_rate": Parameter(low=0.0, high=1.0)}
    found = [f for seed in range(3) for f in verdict(RULE, study(by_decades, 60, seed, space)).findings]
    assert {f.subject for f in found} == {"learning_rate"}
    assert all(isinstance(c, SetRange) and c.low in (0.001, 0.01, 0.0001) for f in found for c in f.changes)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_quiet_on_the_right_scale(scale: Any) -> None:
    space = {**LINEAR, "learning_rate": Parameter(low=1e-3, high=1.0, scale=scale)}
    assert verdict(RULE, study(by_value if scale == "linear" else by_decades, space=space)).status == "quiet"


def test_cannot_tell_where_no_range_spans_a_decade_or_few_trials_have_a_result() -> None:
    narrow = {"learning_rate": Parameter(low=0.1, high=0.5), "dropout": Parameter(low=0.0, high=0.5)}
    assert "no searched number spans a factor of 10" in lacking(RULE, study(by_value, space=narrow))
    assert "at least 12 are needed" in str(verdict(RULE, study(by_decades, 8)).reason)
    failing = study(lambda row, rng: math.nan if row["learning_rate"] > 0.2 else 1.0, 30)
    assert "at least 12 are needed" in str(verdict(RULE, failing).reason)


def test_the_length_of_the_training_is_left_alone() -> None:
    space = {"max_steps": Parameter(low=10, high=10000, type="int"), "dropout": Parameter(low=0.0, high=0.5)}
    made = study(lambda row, rng: math.log(row["max_steps"]), space=space)
    assert lacking(RULE, made)


@pytest.mark.parametrize(("count", "scale"), [(14, "linear"), (14, "log"), (40, "linear"), (40, "log")])
def test_keeps_its_promise_on_the_right_scale_with_failures_ties_and_conditions(count: int, scale: Any) -> None:
    space = {
        "learning_rate": Parameter(low=1e-3, high=1.0, scale=scale),
        "epsilon": Parameter(low=1e-8, high=1.0, scale="log"),
        "optimizer": Parameter(choices=("sgd", "adam")),
    }
    wrong = []
    for seed in studies(60):
        rng = np.random.default_rng(1000 + seed)
        best, noise, cliff = rng.random(), rng.choice([0.1, 0.5]), rng.choice([0.9, 2.0])
        params, costs = [], []
        for u in rng.random((count, 3)).tolist():
            row = {n: p.draw(x) for (n, p), x in zip(space.items(), u, strict=True)}
            if row["optimizer"] == "sgd":
                del row["epsilon"]
            costs.append(math.nan if u[0] > cliff else round(4 * (u[0] - best) ** 2 + noise * rng.standard_normal(), 1))
            params.append(row)
        wrong.append(verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).status == "fired")
    assert np.mean(wrong) <= 0.05


def test_a_sampler_that_learned_makes_it_a_note() -> None:
    rng = np.random.default_rng(4)
    early, late = rng.random((20, 2)), np.column_stack([np.abs(0.02 * rng.standard_normal(40)), rng.random(40)])
    params = [{"rate_scale": 0.001 + 0.999 * min(a, 1), "dropout": b} for a, b in np.vstack([early, late]).tolist()]
    costs = [(math.log10(p["rate_scale"]) + 1.8) ** 2 + 0.05 * rng.standard_normal() for p in params]
    space = {"rate_scale": Parameter(low=0.001, high=1.0), "dropout": Parameter(low=0.0, high=1.0)}
    (finding,) = verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).findings
    assert (finding.severity, finding.doubt) == ("note", 0.8)


def test_a_range_that_nobody_declared_makes_it_less_sure() -> None:
    rng = np.random.default_rng(5)
    params = [{"rate_scale": 0.001 + 0.999 * u} for u in rng.random(60).tolist()]
    costs = [(math.log10(p["rate_scale"]) + 2.7) ** 2 + 0.05 * rng.standard_normal() for p in params]
    made = make_study(params, {"val/loss": costs})
    assert made.spec.parameters["rate_scale"].scale == "linear"
    (finding,) = verdict(RULE, made).findings
    assert finding.confidence <= 0.9
    assert "inferred from the trials" in str(dict(finding.evidence[-1].rows)["range"])


def test_thousands_of_trials() -> None:
    (finding,) = verdict(RULE, study(by_decades, 3000)).findings
    assert finding.subject == "learning_rate"


DECADES = 3.0


def logarithmic(linear: np.ndarray) -> np.ndarray:
    """Positions on the log scale of positions on a linear one, of a range of three decades."""
    low = 10**-DECADES
    return (np.log10(low + linear * (1 - low)) + DECADES) / DECADES


def linear(log: np.ndarray) -> np.ndarray:
    low = 10**-DECADES
    return (10 ** (DECADES * (log - 1)) - low) / (1 - low)


def test_tells_a_response_to_the_logarithm_from_one_to_the_value() -> None:
    rng = np.random.default_rng(0)
    u, other = rng.random((2, 48))
    blocks = [axis_coordinates(other, True)]
    costs = 8 * (logarithmic(u) - 0.2) ** 2 + other + 0.1 * rng.standard_normal(48)
    assert space_scale.p_value_of_scale(u, logarithmic(u), blocks, costs) <= 0.01
    v = rng.random(48)
    costs = 8 * (linear(v) - 0.6) ** 2 + other + 0.1 * rng.standard_normal(48)
    assert space_scale.p_value_of_scale(v, linear(v), blocks, costs) <= 0.01


@pytest.mark.parametrize("declared", ["linear", "log"])
@pytest.mark.parametrize("count", [12, 40])
def test_keeps_its_level_for_responses_that_are_smooth_on_the_scale_used(declared: str, count: int) -> None:
    wrong = []
    for seed in studies(60):
        rng = np.random.default_rng(seed)
        used = rng.random(count)
        other = logarithmic(used) if declared == "linear" else linear(used)
        costs = [8 * (used - rng.random()) ** 2, 3 * used, -3 * used, 0 * used][seed % 4]
        costs = costs + rng.choice([0.1, 0.5]) * rng.standard_normal(count)
        wrong.append(space_scale.p_value_of_scale(used, other, [], costs) <= 0.05)
    assert np.mean(wrong) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)


def test_unit_and_huge_values_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    u = rng.random(30)
    costs = (logarithmic(u) - 0.1) ** 2
    p = space_scale.p_value_of_scale(u, logarithmic(u), [], costs)
    costs[np.argmax(costs)] *= 1e12
    assert space_scale.p_value_of_scale(u, logarithmic(u), [], 1e6 * costs - 3) == p


def test_says_nothing_of_ties_few_values_and_missing_positions() -> None:
    u = np.linspace(0, 1, 20)
    assert space_scale.p_value_of_scale(u, logarithmic(u), [], np.ones(20)) == 1
    assert space_scale.p_value_of_scale(u[:5], logarithmic(u[:5]), [], u[:5]) == 1
    some = np.where(np.arange(20) % 2, u, np.nan)
    assert 0 < space_scale.p_value_of_scale(some, logarithmic(some), [], (u - 0.5) ** 2) <= 1
    assert space_scale.spans_of_best_values(np.full(5, np.nan), u[:5], u[:5]) == (1, 1)


def test_room_is_what_the_best_span() -> None:
    u = np.linspace(0, 1, 41)
    low, wide = space_scale.spans_of_best_values(u, logarithmic(u), u)
    assert low == pytest.approx(0.1)
    assert wide == pytest.approx(float(logarithmic(np.array([0.1]))[0]))
