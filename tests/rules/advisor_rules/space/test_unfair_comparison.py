from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, verdict

from advisor.analysis import analyze_study
from advisor.engine.registry import load_rules
from advisor.model.change import Advise, SetField, SetRange
from advisor.model.spec import Parameter

RULE = "unfair-comparison"


def study(rows: list[tuple[Any, float, float]], name: str = "activation", **more: Any) -> Any:
    """One trial per (value, learning rate, cost)."""
    params = [{name: value, "lr": float(lr)} for value, lr, _ in rows]
    return make_study(params, {"val/loss": [cost for *_, cost in rows]}, **more)


def valley(lr: float, best: float) -> float:
    return 0.1 * float(np.log10(lr / best)) ** 2


def unequal(count: int = 8, best: float = 1e-1) -> list[tuple[Any, float, float]]:
    low, high = np.geomspace(1e-5, 1e-3, count), np.geomspace(1e-3, 1e-1, count)
    return [("tanh", r, 0.5 + valley(r, best)) for r in low] + [("relu", r, 0.4 + valley(r, 1e-2)) for r in high]


def example() -> Any:
    """The learning rates of one activation end where those of the other begin."""
    return study(unequal(8))


@pytest.mark.parametrize("count", [6, 8, 20])
def test_fires_where_a_range_ends_at_its_best_and_the_others_go_on(count: int) -> None:
    made = study(unequal(count))
    (finding,) = verdict(RULE, made).findings
    assert finding.subject == "activation"
    assert "is best at that end" in finding.message
    trials, advice = finding.changes
    assert isinstance(trials, SetField)
    assert isinstance(advice, Advise)
    after = trials.apply(made.spec)
    assert after.trials > len(made.trials)
    assert {t.params["activation"] for t in made.trials if t.id in finding.trials} == {"tanh"}


def test_a_whole_number_of_few_values_is_compared_a_batch_size_is_not() -> None:
    rows = [({"tanh": 1, "relu": 3}[v], r, c) for v, r, c in unequal()]
    assert verdict(RULE, study(rows, name="depth")).status == "fired"
    assert lacking(RULE, study(rows, name="batch_size"))
    assert lacking(RULE, study(rows, name="weight_decay"))


def test_a_value_that_lost_where_nothing_trained_is_named_unless_it_is_an_optimizer() -> None:
    rng = np.random.default_rng(0)
    said, of_optimizer = [], 0
    for _ in range(10):
        rows = [("deep", r, 2.0 + 0.01 * rng.standard_normal()) for r in np.geomspace(0.1, 10, 10)]
        rows += [("flat", r, 0.4 + valley(r, 1e-3)) for r in np.geomspace(1e-4, 1e-1, 10)]
        said += [f.message for f in verdict(RULE, study(rows, name="model")).findings]
        of_optimizer += verdict(RULE, study(rows, name="optimizer")).status == "fired"
    assert len(said) >= 6
    assert "lost to a trial with a lower value" in said[0]
    assert of_optimizer <= 1


def test_fires_where_the_lead_is_one_of_numbers() -> None:
    rng = np.random.default_rng(1)
    rates = 10 ** rng.uniform(-4, -1, 40)
    rows = [("a" if i < 4 else "b", r, float(rng.random())) for i, r in enumerate(rates)]
    (finding,) = verdict(RULE, study(rows)).findings
    assert "activation = a had 4 " in finding.message
    assert finding.changes[0].value == 40


def test_failures_count_as_fewer_chances() -> None:
    rng = np.random.default_rng(2)
    rows = [("ab"[i % 2], r, float(rng.random()) + (i % 2 == 0)) for i, r in enumerate(10 ** rng.uniform(-4, -1, 24))]
    good = [c if v == "b" else 0.05 + 0.1 * c for v, _, c in rows]
    status = ["diverged" if v == "a" and i > 2 else "complete" for i, (v, *_) in enumerate(rows)]
    made = study([(v, r, c) for (v, r, _), c in zip(rows, good, strict=True)], status=status)
    assert [f.subject for f in verdict(RULE, made).findings] == ["activation"]


def test_a_value_at_chance_level_had_no_fair_chance() -> None:
    rng = np.random.default_rng(6)
    rates = 10 ** rng.uniform(-4, -1, 24)
    stuck = [2.303 + 1e-4 * rng.standard_normal() for _ in rates]
    rows = [("ab"[i % 2], r, stuck[i] if i % 2 and i > 2 else 0.4 + valley(r, 1e-2)) for i, r in enumerate(rates)]
    (finding,) = verdict(RULE, study(rows)).findings
    assert "activation = b had no fair chance. 10 of its 12 settings end at 2.303" in finding.message


def test_a_value_that_nearly_always_failed_had_no_fair_chance() -> None:
    rates = np.geomspace(1e-4, 1e-1, 18)
    rows = [("abc"[i % 3], r, 0.4 + valley(r, 1e-2)) for i, r in enumerate(rates)]
    status = ["diverged" if v == "c" else "complete" for v, *_ in rows]
    (finding,) = verdict(RULE, study(rows, status=status)).findings
    assert "activation = c had no fair chance. 6 of its 6 settings failed, and 0 of the 12 other" in finding.message


def test_a_sampler_that_learned_makes_it_a_note() -> None:
    rng = np.random.default_rng(5)
    rows: list[tuple[Any, float, float]] = []
    for i in range(40):
        best = min(rows, key=lambda row: row[2])[1] if rows else 1.0
        near = float(np.clip(best * 10 ** (0.1 * rng.standard_normal()), 1e-5, 0.1))
        rate = float(10 ** rng.uniform(-5, -1)) if i < 10 else near
        value = "b" if i % 2 and i < 10 else "a"
        rows.append((value, rate, valley(rate, 1e-2) + 0.1 * float(rng.random())))
    rows[1] = ("b", 1e-2, float(np.median([c for *_, c in rows])))
    (finding,) = verdict(RULE, study(rows)).findings
    assert finding.severity == "note"
    assert "adaptive" in str(finding.evidence)


def shared(best: dict[str, float], count: int = 12) -> list[tuple[Any, float, float]]:
    """Values that are all tried in one range, each with the learning rate that is best for it."""
    level = {value: 0.4 + 0.1 * i for i, value in enumerate(best)}
    return [(v, r, level[v] + valley(r, best[v])) for r in np.geomspace(1e-5, 1e-2, count) for v in best]


def test_fires_where_one_range_for_all_suits_the_winner_only() -> None:
    (finding,) = verdict(RULE, study(shared({"adam": 1e-4, "sgd": 1.0}), name="optimizer")).findings
    assert (finding.subject, finding.side) == ("optimizer", "high")
    assert "optimizer = sgd lost" in finding.message
    (change,) = finding.changes
    assert isinstance(change, SetRange)
    assert change.low == pytest.approx(1e-5)
    assert change.high > 1e-2


def test_quiet_if_no_value_had_a_disadvantage() -> None:
    """Each is best inside its own range; all are best at one end; the loser would also have lost with as many trials."""
    rng = np.random.default_rng(3)
    rows = [("a" if i < 4 else "b", r, float(i < 4) + float(rng.random())) for i, r in enumerate(10 ** rng.uniform(-4, -1, 40))]
    for made in (unequal(10, best=1e-4), shared({"adam": 3e-1, "sgd": 1.0}), rows):
        assert verdict(RULE, study(made)).status == "quiet"


def test_cannot_tell_without_values_to_compare_or_results() -> None:
    rows = [{"lr": 0.1 * i} for i in range(1, 9)]
    assert lacking(RULE, make_study(rows, {"val/loss": [1.0] * 8}))
    said = verdict(RULE, study([("a", 0.1, 1.0), ("b", 0.2, 1.0)]))
    assert said.status == "not-assessed"
    space = {"activation": Parameter(type="categorical", choices=("a", "b")), "lr": Parameter(low=1e-3, high=1.0)}
    assert verdict(RULE, study([("a", 0.1, 1.0)] * 4, space=space)).status == "not-assessed"


@pytest.mark.parametrize(("count", "levels", "ties"), [(6, 2, 0), (12, 3, 4), (24, 2, 0), (100, 4, 0)])
def test_keeps_its_promise_where_all_are_sampled_alike(count: int, levels: int, ties: int) -> None:
    rng = np.random.default_rng(count)
    fired = 0
    for _ in studies(100):
        u = rng.random((count, 2))
        u = np.round(u * (ties - 1)) / (ties - 1) if ties else u
        kind = rng.integers(levels, size=count)
        cost = -2 * u[:, 0] + 0.3 * kind + 0.3 * rng.standard_normal(count)
        params = [
            {"kind": "abcd"[k], "x": float(x), **({"y": float(y)} if k else {})} for k, (x, y) in zip(kind, u, strict=True)
        ]
        status = ["diverged" if x > 0.8 and y > 0.5 else "complete" for x, y in u]
        if status.count("complete") < 3:
            continue
        fired += verdict(RULE, make_study(params, {"val/loss": cost}, status=status)).status == "fired"
    assert kept(fired, len(studies(100)))


def test_narrowing_the_range_waits_for_the_comparison_that_needs_it() -> None:
    made = study(unequal(20))
    report = analyze_study(made, rules=load_rules())
    shrink = [f for f in report.findings if f.rule in ("space-shrink", "space-boundary") and f.subject == "lr"]
    assert shrink
    assert {f.explained_by.rule for f in shrink if f.explained_by} == {RULE}
    assert all(f.explained_by for f in shrink)
