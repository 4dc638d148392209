from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, verdict

from advisor.model.change import FixParameter
from advisor.model.spec import Parameter

RULE = "space-insensitive"
SPACE = {
    "learning_rate": Parameter(low=1e-4, high=1e-1, scale="log"),
    "beta2": Parameter(low=0.9, high=0.999),
    "dropout": Parameter(low=0.0, high=0.5),
    "optimizer": Parameter(choices=("sgd", "adam", "lion")),
}


def study(count: int, cost: Any, seed: int = 0, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    params = [
        {name: p.draw(u) for (name, p), u in zip(SPACE.items(), rng.random(4).tolist(), strict=True)} for _ in range(count)
    ]
    at = [{name: float(p.to_positions([row[name]])[0]) for name, p in SPACE.items()} for row in params]
    costs = [cost(row, rng) for row in at]
    return make_study(params, {"val/loss": costs}, space=SPACE, **more)


def by_rate_and_dropout(at: dict[str, float], rng: np.random.Generator) -> float:
    return (at["learning_rate"] - 0.6) ** 2 + 0.5 * at["dropout"] + 0.03 * rng.standard_normal()


def example() -> Any:
    """Only the learning rate and dropout of four hyperparameters matter."""
    return study(48, by_rate_and_dropout)


def test_fires_for_what_hardly_matters_and_fixes_it_at_the_best_trials_value() -> None:
    made = example()
    findings = verdict(RULE, made).findings
    assert {f.subject for f in findings} == {"beta2", "optimizer"}
    best = made.ranked()[0]
    for finding in findings:
        (change,) = finding.changes
        assert isinstance(change, FixParameter)
        assert change.value == best.params[str(finding.subject)]
        assert not change.apply(made.spec).parameters[str(finding.subject)].searched
        assert (finding.severity, finding.goal) == ("note", "sampling")
        assert finding.confidence >= 0.6


def test_quiet_where_each_matters() -> None:
    made = study(48, lambda at, rng: sum(at.values()) + 0.05 * rng.standard_normal())
    assert verdict(RULE, made).status == "quiet"


def test_an_effect_that_depends_on_another_hyperparameter_is_one() -> None:
    made = study(60, lambda at, rng: (at["learning_rate"] - 0.5) * (at["beta2"] - 0.5) + 0.01 * rng.standard_normal())
    assert "beta2" not in {f.subject for f in verdict(RULE, made).findings}


def test_the_learning_rate_stays_open_though_it_hardly_matters() -> None:
    made = study(60, lambda at, rng: at["dropout"] + 0.05 * rng.standard_normal())
    assert {f.subject for f in verdict(RULE, made).findings} == {"beta2", "optimizer"}


def test_what_the_study_compares_stays_open_though_it_hardly_matters() -> None:
    space = {**SPACE, "optimizer": Parameter(role="scientific", choices=("sgd", "adam", "lion"))}
    params = [t.params for t in example().trials]
    made = make_study(params, {"val/loss": list(example().costs)}, space=space)
    assert {f.subject for f in verdict(RULE, made).findings} == {"beta2"}


def momentum_with(optimizers: tuple[str, ...], effect: float) -> Any:
    """Return a study whose results depend on momentum only with the first optimizer."""
    rng = np.random.default_rng(1)
    params: list[dict[str, Any]] = []
    costs = []
    for i in range(60):
        optimizer, rate, momentum = optimizers[i % len(optimizers)], rng.random(), rng.random()
        params.append({"optimizer": optimizer, "lr": 10 ** (-4 + 3 * rate), "momentum": 0.5 + 0.49 * momentum})
        away = 4 * (rate - 0.5) ** 2 + effect * (momentum - 0.5) ** 2 * (optimizer == optimizers[0])
        costs.append(1 + away + 0.02 * rng.standard_normal())
    return make_study(params, {"val/loss": costs})


def test_says_with_which_choice_it_matters() -> None:
    (finding,) = [f for f in verdict(RULE, momentum_with(("sgd", "adam", "lion"), 2.0)).findings if f.subject == "momentum"]
    assert str(finding.message).startswith("momentum matters only with optimizer = sgd.")
    assert str(finding.action) == "Search momentum only with optimizer = sgd. Fix it elsewhere."
    assert not any(isinstance(c, FixParameter) for c in finding.changes)
    (finding,) = [f for f in verdict(RULE, momentum_with(("sgd", "adam", "lion"), 0.0)).findings if f.subject == "momentum"]
    assert any(isinstance(c, FixParameter) for c in finding.changes)
    assert "With only" not in finding.message


def test_says_that_few_settings_with_one_choice_may_hide_an_effect() -> None:
    (finding,) = [f for f in verdict(RULE, momentum_with(("a", "b", "c", "d", "e"), 0.0)).findings if f.subject == "momentum"]
    assert (
        "With only 12 settings for optimizer = a, an effect of momentum that occurs only there may be missed."
        in finding.message
    )


def test_the_upper_bound_decides() -> None:
    made = study(16, by_rate_and_dropout)
    assert verdict(RULE, made, largest=0.9, certainty=0.5).status == "fired"
    assert verdict(RULE, made, largest=0.01, certainty=0.5).status == "quiet"


def test_a_regulariser_that_no_trial_did_without_stays_open() -> None:
    space = {**SPACE, "dropout": Parameter(low=0.5, high=0.95)}
    rng = np.random.default_rng(0)
    params = [{n: p.draw(float(rng.random())) for n, p in space.items()} for _ in range(48)]
    costs = [float(np.log10(p["learning_rate"])) + 0.01 * rng.standard_normal() for p in params]  # type: ignore[arg-type]
    assert "dropout" not in {f.subject for f in verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).findings}


@pytest.mark.parametrize(("optimizer", "stays"), [("sgd", True), ("adamw", False)])
def test_a_weight_decay_that_is_strong_for_sgd_stays_open(optimizer: str, stays: bool) -> None:
    space = {"learning_rate": SPACE["learning_rate"], "weight_decay": Parameter(low=1e-2, high=1.0, scale="log")}
    rng = np.random.default_rng(0)
    params = [{"optimizer": optimizer, **{n: p.draw(float(rng.random())) for n, p in space.items()}} for _ in range(48)]
    costs = [float(np.log10(p["learning_rate"])) + 0.01 * rng.standard_normal() for p in params]  # type: ignore[arg-type]
    named = {f.subject for f in verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).findings}
    assert ("weight_decay" not in named) == stays


def test_cannot_tell_from_few_settings_or_a_single_hyperparameter() -> None:
    assert "at least 16 are needed to judge 4" in str(verdict(RULE, study(12, by_rate_and_dropout)).reason)
    assert "at least 8 are needed" in str(verdict(RULE, study(5, by_rate_and_dropout)).reason)
    only = make_study([{"lr": 0.1 * (i + 1)} for i in range(20)], {"val/loss": list(np.arange(20.0))})
    assert "only one hyperparameter" in lacking(RULE, only)


def test_repeats_with_other_seeds_are_no_further_settings() -> None:
    params = [{"lr": 0.01 * (i % 4 + 1), "dropout": 0.1 * (i % 3)} for i in range(40)]
    said = verdict(RULE, make_study(params, {"val/loss": list(np.linspace(1, 2, 40))}))
    assert "12 distinct settings" in str(said.reason)


def test_where_all_may_be_noise_it_rarely_speaks_and_with_a_loose_bound_says_so() -> None:
    noise = [study(24, lambda at, rng: rng.standard_normal(), seed) for seed in range(12)]
    assert sum(verdict(RULE, made).status == "fired" for made in noise) <= 2
    findings = [f for made in noise for f in verdict(RULE, made, largest=0.9, certainty=0.6).findings]
    doubtful = [f for f in findings if "may be noise" in f.message]
    assert len(doubtful) > len(findings) / 2
    assert all(f.confidence <= 0.8 for f in doubtful)


@pytest.mark.parametrize(("count", "noise"), [(16, 0.1), (24, 0.3), (48, 0.3)])
def test_keeps_its_promise_for_what_a_quarter_of_the_differences_go_with(count: int, noise: float) -> None:
    """The variances of position are 1/12 (twice) and 1/6 of the categories, with noise: dropout brings at least a quarter."""

    def cost(at: dict[str, float], rng: np.random.Generator) -> float:
        failed = at["learning_rate"] > 0.95
        return math.nan if failed else at["learning_rate"] + at["dropout"] + noise * rng.standard_normal()

    wrong = ["dropout" in {f.subject for f in verdict(RULE, study(count, cost, seed)).findings} for seed in studies(60)]
    assert kept(sum(wrong), len(wrong))


def test_a_conditional_hyperparameter_that_matters_is_not_named() -> None:
    space = {
        "learning_rate": Parameter(low=1e-4, high=1e-1, scale="log"),
        "optimizer": Parameter(choices=("sgd", "adam")),
        "momentum": Parameter(low=0.0, high=1.0, when={"optimizer": "sgd"}),
        "alpha": Parameter(low=0.0, high=1.0),
    }
    rng = np.random.default_rng(7)
    params: list[dict[str, Any]] = []
    costs = []
    for _ in range(60):
        row: dict[str, Any] = {n: p.draw(float(rng.random())) for n, p in space.items()}
        if row["optimizer"] == "adam":
            del row["momentum"]
        costs.append(2 * row.get("momentum", 0.5) + 0.1 * rng.standard_normal())
        params.append(row)
    named = {f.subject for f in verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).findings}
    assert "momentum" not in named
    assert "alpha" in named


def test_a_sampler_that_learned_makes_it_less_sure() -> None:
    rng = np.random.default_rng(3)
    u = rng.random((80, 2))
    u[30:, 0] = np.clip(0.5 + 0.25 * np.linspace(1, 0.3, 50) * rng.standard_normal(50), 0, 1)
    space = {n: Parameter(low=0.0, high=1.0) for n in ("width", "alpha")}
    params = [{"width": a, "alpha": b} for a, b in u.tolist()]
    costs = list((u[:, 0] - 0.5) ** 2 + 0.002 * rng.standard_normal(80))
    (finding,) = verdict(RULE, make_study(params, {"val/loss": costs}, space=space)).findings
    assert finding.subject == "alpha"
    assert finding.doubt == 0.8
    assert "adaptive" in str(finding.evidence[-1])


def test_thousands_of_trials_and_ties() -> None:
    made = study(3000, lambda at, rng: round(at["learning_rate"], 1))
    assert {"beta2", "dropout", "optimizer"} == {f.subject for f in verdict(RULE, made).findings}
