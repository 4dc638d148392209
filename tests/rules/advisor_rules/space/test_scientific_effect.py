from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import ALL, kept, studies
from studies import lacking, make_study, verdict

from advisor.computed.space import settings
from advisor.model.change import DropValues, FixParameter
from advisor.model.spec import Parameter
from advisor_rules.space.scientific_effect import ScientificEffect
from advisor_rules.space.unfair_comparison import UnfairComparison

RULE = "scientific-effect"


def study(behind: dict[Any, float], seed: int = 0, count: int = 24, name: str = "activation", **more: Any) -> Any:
    """Random learning rates and dropouts for each value; `behind` is its distance from the best, in seed standard deviations."""
    rng = np.random.default_rng(seed)
    params, costs = [], []
    for i in range(count):
        value = list(behind)[i % len(behind)]
        rate, dropout = rng.random(2)
        params.append({name: value, "lr": float(10 ** (-4 + 3 * rate)), "dropout": float(0.5 * dropout)})
        response = 1.5 * (rate - 0.5) ** 2 + 0.2 * (dropout - 0.3) ** 2
        costs.append(0.5 + response + 0.01 * (behind[value] + rng.standard_normal()))
    return make_study(params, {"val/loss": costs}, **more)


def example() -> Any:
    """One of two activations is ten standard deviations between seeds worse."""
    return study({"gelu": 0.0, "relu": 10.0})


def test_says_how_large_a_difference_may_be_where_none_is_seen() -> None:
    (finding,) = verdict(RULE, study({"gelu": 0.0, "relu": 0.0})).findings
    assert "The values of activation differ by at most 0.0" in finding.message
    assert finding.changes == ()


def test_of_several_values_it_names_those_behind() -> None:
    (finding,) = verdict(RULE, study({"a": 0.0, "b": 0.0, "c": 15.0}, count=42)).findings
    assert "better than c by" in finding.message
    (change,) = finding.changes
    assert isinstance(change, DropValues)
    assert change.values == ("c",)


def test_a_declared_number_is_a_question_an_inferred_one_is_not() -> None:
    space = {
        "depth": Parameter(role="scientific", type="int", choices=(2, 4)),
        "lr": Parameter(low=1e-4, high=1e-1, scale="log"),
        "dropout": Parameter(low=0.0, high=0.5),
    }
    assert verdict(RULE, study({2: 0.0, 4: 10.0}, name="depth", space=space)).status == "fired"
    assert lacking(RULE, study({2: 0.0, 4: 10.0}, name="depth"))


def test_the_variation_between_seeds_is_measured_where_settings_were_repeated() -> None:
    rows = [({"norm": "ab"[i % 2], "lr": 10.0 ** -(1 + i // 4)}, i) for i in range(24)]
    costs = [0.5 + 0.1 * (i // 4 - 2) ** 2 + 0.2 * (i % 2) + 0.01 * ((7 * i) % 5 - 2) for _, i in rows]
    made = make_study([p for p, _ in rows], {"val/loss": costs}, seeds=[i % 4 // 2 for _, i in rows])
    (finding,) = verdict(RULE, made).findings
    assert "The standard deviation between seeds is 0.0" in finding.message


def repeated(*means: float, seeds: int, seed: int = 0) -> Any:
    """Values of one hyperparameter, each trained with as many seeds; `means` in standard deviations between seeds."""
    rng = np.random.default_rng(seed)
    tried = [(f"v{i}", mean, s) for i, mean in enumerate(means) for s in range(seeds)]
    costs = [0.5 + 0.01 * (mean + rng.standard_normal()) for _, mean, _ in tried]
    return make_study([{"code": name} for name, _, _ in tried], {"val/loss": costs}, seeds=[s for _, _, s in tried])


def test_a_comparison_of_repeated_values_needs_no_other_hyperparameter() -> None:
    (finding,) = verdict(RULE, repeated(0.0, 5.0, seeds=5)).findings
    assert "code = v0 is better than v1 by" in finding.message
    assert finding.changes == (FixParameter(parameter="code", value="v0", why=str(finding.message).split(". The")[0] + "."),)
    (finding,) = verdict(RULE, repeated(0.0, 0.0, seeds=5)).findings
    assert "The values of code differ by at most" in finding.message
    assert "tuned" not in finding.message
    assert lacking(RULE, repeated(0.0, 5.0, seeds=1))


def test_repeats_of_settings_that_differ_in_several_hyperparameters_answer_no_question() -> None:
    made = make_study(
        [{"code": c, "layers": n} for c, n in (("old", "two"), ("new", "three")) for _ in range(5)],
        {"val/loss": [0.5, 0.51, 0.49, 0.52, 0.48, 0.3, 0.31, 0.29, 0.32, 0.28]},
        seeds=list(range(5)) * 2,
    )
    assert lacking(RULE, made)


def test_repeats_that_were_chosen_by_their_first_run_or_are_identical_answer_no_question() -> None:
    params = [{"code": c} for c in ("sgd", "adam", "lion", "adam")]
    assert lacking(RULE, make_study(params, {"val/loss": [0.5, 0.4, 0.6, 0.45]}))
    equal = make_study([{"code": c} for c in "aabb"], {"val/loss": [0.5, 0.5, 0.4, 0.4]}, seeds=[0, 1, 0, 1])
    assert lacking(RULE, equal)


@pytest.mark.parametrize(("values", "seeds"), [(2, 2), (2, 5), (4, 3)])
def test_keeps_its_promise_where_repeated_values_are_equal(values: int, seeds: int) -> None:
    found = [verdict(RULE, repeated(*[0.0] * values, seeds=seeds, seed=i)).findings[0] for i in range(200 if ALL else 100)]
    assert kept(sum("better than" in f.message for f in found), len(found))


def test_cannot_tell_from_few_results() -> None:
    assert "needs at least 4 settings" in lacking(RULE, study({"gelu": 0.0, "relu": 0.0}, count=6))
    equal = make_study([{"norm": "ab"[i % 2], "lr": 0.1 / (i + 1)} for i in range(12)], {"val/loss": [1.0] * 12})
    assert lacking(RULE, equal)


def test_needs_trials_that_early_results_did_not_select() -> None:
    def with_pruned(count: int) -> Any:
        return study({"gelu": 0.0, "relu": 10.0}, status=["pruned"] * count + ["complete"] * (24 - count))

    assert verdict(RULE, with_pruned(4)).status == "fired"
    assert "6 of 24 trials were pruned" in lacking(RULE, with_pruned(6))


def test_intervals_are_wider_if_weaker_hyperparameters_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {
        "activation": Parameter(role="scientific", type="categorical", choices=("gelu", "relu")),
        "lr": Parameter(low=1e-4, high=1e-1, scale="log"),
        "dropout": Parameter(low=0.0, high=0.5),
    }
    monkeypatch.setattr(settings, "MAX_AXES", 2)
    made, rule = study({"gelu": 0.0, "relu": 10.0}, space=space), ScientificEffect()
    tried = settings.read_settings(made)
    assert set(tried.unexamined_positions) == {"dropout"}
    (question,), _ = rule._collect_comparisons(made, tried)
    (finding,) = rule.check(made)
    assert finding.message == rule._build_answer_finding(made, question, 0.05 * 2 / 3).message
    assert finding.message != rule._build_answer_finding(made, question, 0.05).message


def test_keeps_its_promise_where_the_values_do_not_differ() -> None:
    said = [verdict(RULE, study({"a": 0.0, "b": 0.0}, seed)).findings[0] for seed in studies(60)]
    assert kept(sum("differ by at most" not in f.message for f in said), len(said))


def test_the_rules_about_a_comparison_agree_on_the_number_of_values() -> None:
    assert ScientificEffect().levels == UnfairComparison().levels


def test_of_many_switches_it_compares_the_strongest_and_says_how_many_are_left_out() -> None:
    rng = np.random.default_rng(5)
    flags = rng.random((40, 9)) < 0.5
    params = [{**{f"flag{j}": bool(on) for j, on in enumerate(row)}, "lr": float(rng.random())} for row in flags]
    costs = [float(0.5 + 0.2 * row[7] + 0.01 * rng.standard_normal()) for row in flags]
    rule = ScientificEffect()
    findings = verdict(RULE, make_study(params, {"val/loss": costs})).findings
    assert len(findings) == rule.most
    (named,) = (f for f in findings if f.changes)
    assert named.subject == "flag7"
    assert str(dict(named.evidence[1].rows)["not compared"]) == "3 hyperparameters with weaker effects"
