from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, verdict

from advisor.model.change import Advise, Reparametrise, SetRange
from advisor.model.message import Number
from advisor.model.spec import Parameter
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning import plan
from advisor.planning.sampling.halton import draw_trials
from advisor_rules.space._failure_regions import search_higher_rates

LR = {"learning_rate": Parameter(low=1e-4, high=1.0, scale="log")}


def sweep(failing: int, total: int = 12, kind: str = "diverged") -> Any:
    """The highest `failing` of `total` learning rates fail."""
    fine = total - failing
    params = [{"learning_rate": float(r)} for r in np.geomspace(1e-4, 1, total)]
    curves = [[2.0, 1 + 0.05 * abs(i - 4)] for i in range(fine)] + [[2.0, np.nan]] * failing
    return make_study(params, {"val/loss": curves}, status=["complete"] * fine + [kind] * failing, space=LR)


def example() -> Any:
    """The highest four of twelve learning rates diverge."""
    return sweep(4)


@pytest.mark.parametrize("kind", ["diverged", "infeasible"])
def test_fires_and_cuts_the_region_off(kind: str) -> None:
    study = sweep(4, kind=kind)
    (finding,) = verdict("space-infeasible", study).findings
    assert (finding.subject, finding.side, len(finding.trials)) == ("learning_rate", "high", 4)
    what = kind if kind == "diverged" else "crashed"
    assert str(finding.message).startswith(f"4 of 12 trials {what}: all 4 settings with learning_rate of ")
    (change,) = finding.changes
    assert isinstance(change, SetRange)
    after = change.apply(study.spec).parameters["learning_rate"]
    assert after.low == 1e-4
    rates = np.geomspace(1e-4, 1, 12)
    assert rates[7] < after.high < rates[8]


@pytest.mark.parametrize("failing", [3, 6, 8])
def test_a_range_that_is_too_wide_is_no_emergency_however_many_trials_it_wastes(failing: int) -> None:
    (finding,) = verdict("space-infeasible", sweep(failing)).findings
    assert finding.side == "high"
    assert finding.severity == "warning"


def test_stuck_trials_count() -> None:
    params = [{"lr": float(r)} for r in np.geomspace(1e-4, 1, 8)]
    curves = [[-0.1, -0.9 - 0.01 * i] for i in range(6)] + [[-0.1, -0.1]] * 2
    (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves})).findings
    assert "2 of 8 trials got hardly better than at their first evaluation" in finding.message
    status = ["complete"] * 6 + ["not_learned"] * 2
    (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status)).findings
    assert "2 of 8 trials learned nothing" in finding.message


def test_failures_everywhere_suggest_a_bug() -> None:
    rng = np.random.default_rng(0)
    params = [{"dropout": float(u)} for u in rng.random(20)]
    status = ["diverged", "complete"] * 10
    curves = [[2.0, np.nan] if s == "diverged" else [2.0, 1.0] for s in status]
    (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status)).findings
    assert finding.severity == "critical"
    assert isinstance(finding.changes[0], Advise)
    assert "bug" in finding.action


def test_where_every_rate_failed_lower_ones_come_next() -> None:
    study = sweep(12)
    (finding,) = verdict("space-infeasible", study).findings
    assert "12 of 12" in finding.message
    change = finding.changes[0]
    assert change.high == pytest.approx(1e-4)
    assert isinstance(finding.changes[1], Advise)


def test_two_hyperparameters_that_share_the_blame_are_named() -> None:
    rng = np.random.default_rng(1)
    points = rng.random((80, 2))
    status = ["diverged" if max(u, v) > 0.8 else "complete" for u, v in points]
    params = [{"a": float(u), "b": float(v)} for u, v in points]
    curves = [
        [2.0, np.nan] if s == "diverged" else [2.0, 1 + abs(u - 0.4) + abs(v - 0.4)]
        for s, (u, v) in zip(status, points, strict=True)
    ]
    (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status)).findings
    assert any(isinstance(c, Advise) and "combination" in c.text for c in finding.changes)


def test_quiet_on_few_failures_and_on_a_wide_sweep_with_poor_trials() -> None:
    params = [{"lr": float(r)} for r in np.geomspace(1e-8, 1, 20)]
    poor = make_study(params, {"val/loss": [[0.693, c] for c in np.linspace(0.5, 0.693, 20)]})
    assert [verdict("space-infeasible", made).status for made in (sweep(0), sweep(1), poor)] == ["quiet"] * 3


def test_cuts_nothing_where_failures_have_no_place() -> None:
    rng = np.random.default_rng(2)
    cut = 0
    for _ in studies(150):
        status = rng.permutation(["diverged"] * 5 + ["complete"] * 15).tolist()
        params = [{"a": float(u), "b": float(v)} for u, v in rng.random((20, 2))]
        curves = [[2.0, np.nan if s == "diverged" else 1.0] for s in status]
        (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status)).findings
        cut += any(isinstance(c, SetRange) for c in finding.changes)
    assert kept(cut, len(studies(150)))


def both_ends(seed: int, low: float = 2e-4, high: float = 1.3) -> Any:
    """Trials learn nothing at the lowest learning rates, and some diverge at the highest."""
    rng = np.random.default_rng(seed)
    params = [{"lr": float(10 ** rng.uniform(-4, 0.5)), "ls": float(rng.random())} for _ in range(40)]
    fails = [p["lr"] < low or (p["lr"] > high and rng.random() < 0.7) for p in params]
    curves = [[2.0, math.nan if f else 0.5 + 0.1 * abs(math.log10(p["lr"]) + 1)] for f, p in zip(fails, params, strict=True)]
    return make_study(params, {"val/loss": curves}, status=["diverged" if f else "complete" for f in fails])


def test_failures_at_both_ends_of_a_range_are_told_apart() -> None:
    cuts = [f.changes[0] for seed in range(10) for f in verdict("space-infeasible", both_ends(seed)).findings]
    narrowed = [c for c in cuts if isinstance(c, SetRange) and c.low > 1.1e-4 and c.high < 2]
    assert len(narrowed) >= 4
    messages = [str(f.message) for seed in range(10) for f in verdict("space-infeasible", both_ends(seed)).findings]
    assert any(re.search(r"with lr of .* or less, and .* with lr of .* or more", m) for m in messages)


def test_failures_at_random_rates_cut_no_end() -> None:
    cut, rng = 0, np.random.default_rng(4)
    for seed in studies(150):
        rates = 10 ** np.random.default_rng(seed).uniform(-4, 0.5, 40)
        status = rng.permutation(["diverged"] * 6 + ["complete"] * 34).tolist()
        curves = [[2.0, math.nan if s == "diverged" else 1.0] for s in status]
        params = [{"lr": float(r), "ls": float(rng.random())} for r in rates]
        (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status)).findings
        cut += any(isinstance(c, SetRange) for c in finding.changes)
    assert kept(cut, len(studies(150)))


def test_two_failures_without_a_pattern_are_a_note() -> None:
    params = [{"lr": 10 ** -(1 + 0.1 * i)} for i in range(16)]
    curves: list[Any] = [[2.0, 1.0, 0.5 + 0.01 * i] for i in range(16)]
    severities = []
    for failing in ((3, 12), (3, 8, 12)):
        shown = [[2.0, math.nan, math.nan] if i in failing else curve for i, curve in enumerate(curves)]
        (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": shown})).findings
        severities.append(finding.severity)
    assert severities == ["note", "warning"]


def test_cannot_tell_while_all_trials_run() -> None:
    study = sweep(4)
    running = replace(study, trials=tuple(replace(t, status="running") for t in study.trials))
    assert lacking("space-infeasible", running)


def test_an_integer_is_cut_between_whole_numbers() -> None:
    params = [{"batch_size": 2**k} for k in range(3, 11)]
    status = ["complete"] * 5 + ["infeasible"] * 3
    curves = [[2.0, 1.0]] * 5 + [[2.0]] * 3
    study = make_study(params, {"val/loss": curves}, status=status)
    (finding,) = verdict("space-infeasible", study).findings
    after = finding.changes[0].apply(study.spec).parameters["batch_size"]
    assert (after.low, after.high, after.type) == (8, 128, "int")


def test_crashes_are_no_reason_for_lower_rates() -> None:
    (finding,) = verdict("space-infeasible", sweep(12, kind="infeasible")).findings
    assert "12 of 12 trials crashed" in finding.message
    assert [c.kind for c in finding.changes] == ["advise"]
    assert "bug" in finding.action


def test_running_out_of_memory_is_told_apart() -> None:
    params = [{"learning_rate": float(r)} for r in np.geomspace(1e-4, 1, 12)]
    study = make_study(
        params,
        {"val/loss": [[2.0, 1.0]] * 12},
        status=["infeasible", "complete"] * 6,
        tags=[{"error": "out of memory: tried to allocate 2 GiB"} if i < 10 else {} for i in range(12)],
    )
    (finding,) = verdict("space-infeasible", study).findings
    assert str(finding.message) == "6 of 12 trials failed (1 crashed and 5 ran out of memory)."
    assert "memory" in finding.action


BOTH = {
    "learning_rate": Parameter(low=1e-3, high=1.0, scale="log"),
    "momentum": Parameter(low=0.5, high=0.99, scale="reverse-log"),
    "width": Parameter(low=16, high=1024, scale="log"),
}


def failing_where(wrong: Any, count: int = 40, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    params = [{name: p.value_at_position(float(rng.random())) for name, p in BOTH.items()} for _ in range(count)]
    bad = [bool(wrong(p)) for p in params]
    curves = [[2.0, np.nan] if b else [2.0, 1 + 0.3 * float(rng.random())] for b in bad]
    return make_study(params, {"val/loss": curves}, status=["diverged" if b else "complete" for b in bad], space=BOTH)


def test_a_corner_where_trials_fail_is_forbidden() -> None:
    study = failing_where(lambda p: p["learning_rate"] > 0.05 and p["width"] > 100)
    said = verdict("space-infeasible", study)
    (finding,) = said.findings
    assert finding.subject == "learning_rate × width"
    (spec,) = plan(study, [said]).specs
    assert {n: (p.low, p.high) for n, p in spec.searched.items()} == {n: (p.low, p.high) for n, p in BOTH.items()}
    (region,) = spec.forbidden
    assert "settings with learning_rate of" in (region.why or "")
    drawn = list(draw_trials(spec, 200))
    assert len(drawn) == 200
    assert np.mean([p["learning_rate"] > 0.08 and p["width"] > 150 for p in drawn]) < 0.02
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_learning_rate_and_a_momentum_are_searched_by_what_they_act_through() -> None:
    study = failing_where(lambda p: p["learning_rate"] / (1 - p["momentum"]) > 1)
    said = verdict("space-infeasible", study)
    (spec,) = plan(study, [said]).specs
    assert spec.parameters["learning_rate"].formula == "effective_learning_rate * (1 - momentum)"
    assert spec.parameters["effective_learning_rate"].equals == "learning_rate / (1 - momentum)"
    drawn = list(draw_trials(spec, 200))
    assert max(p["learning_rate"] / (1 - p["momentum"]) for p in drawn) < 1.5  # type: ignore[operator]
    assert parse_study_file(format_study_file(spec)) == spec


def test_one_threshold_that_says_as_much_is_kept() -> None:
    (finding,) = verdict("space-infeasible", failing_where(lambda p: p["learning_rate"] > 0.1)).findings
    assert isinstance(finding.changes[0], SetRange)


def test_the_only_rate_that_trains_is_enclosed_by_failures():
    rates = [float(f"{10**x:.3g}") for x in np.linspace(-5, 0, 12)]
    curves = [[3.0, 1.0 if i == 5 else np.nan] for i in range(12)]
    status = ["complete" if i == 5 else "diverged" for i in range(12)]
    study = make_study([{"lr": r} for r in rates], {"val/loss": curves}, status=status)
    (finding,) = verdict("space-infeasible", study).findings
    (change,) = finding.changes
    assert (change.low, change.high) == (pytest.approx(rates[4], rel=0.01), pytest.approx(rates[6], rel=0.01))
    assert "look for a bug" not in str(finding.action).lower()


def test_a_corner_that_holds_good_trials_or_many_successes_is_not_forbidden() -> None:
    rng = np.random.default_rng(0)
    study = failing_where(lambda p: p["learning_rate"] > 0.03 and p["width"] > 60 and rng.random() < 0.65, count=300)
    (finding,) = verdict("space-infeasible", study).findings
    assert [c.kind for c in finding.changes] == ["advise"]
    assert "ended with a result)" in str(finding.message)
    assert "Draw fewer trials" in str(finding.action)


def test_a_failure_at_by_far_the_highest_rate_is_told_from_the_others() -> None:
    params = [{"learning_rate": rate, "beta": b} for rate, b in ((1.9494, 0.1), (0.001, 0.3), (0.00370512, 0.0), (0.003, 0.2))]
    curves = [[2.0, np.nan], *([2.0, 1.0 + 0.1 * i] for i in range(3))]
    (finding,) = verdict("space-infeasible", make_study(params, {"val/loss": curves})).findings
    assert "learning_rate: it is at least 1.94 in all failed trials and at most 0.00371 in the others" in finding.action


@pytest.mark.parametrize("seed", range(6))
def test_of_two_equal_thresholds_that_of_the_step_length_counts_and_poor_short_steps_are_left_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = [{"learning_rate": float(10 ** rng.uniform(-3, 0)), "momentum": float(rng.uniform(0.6, 0.95))} for _ in range(18)]
    params += [{"learning_rate": float(r), "momentum": 0.9} for r in (20, 22, 25)]
    steps = [p["learning_rate"] / (1 - p["momentum"]) for p in params]
    curves = [[2.0, np.nan if i >= 18 else 0.4 + 0.1 * np.log10(s) ** 2] for i, s in enumerate(steps)]
    space = {"learning_rate": Parameter(low=1e-3, high=30, scale="log"), "momentum": BOTH["momentum"]}
    status = ["complete"] * 18 + ["diverged"] * 3
    said = verdict("space-infeasible", make_study(params, {"val/loss": curves}, status=status, space=space))
    (change,) = said.findings[0].changes
    assert isinstance(change, Reparametrise)
    assert min(steps) < change.low < 1 < change.high
    assert f"below {Number(change.low)}, results are worse" in change.why


def three_of_ten(name: str) -> Any:
    """Exactly the three highest values of `name` fail, among ten settings of three hyperparameters."""
    rng = np.random.default_rng(1)
    params = [{name: float(10**x), "beta": float(rng.random()), "decay": float(rng.random())} for x in range(-5, 5)]
    return make_study(params, {"val/loss": [[2.0, 1.0 + 0.1 * i] for i in range(7)] + [[2.0, np.nan]] * 3})


def test_failures_at_the_highest_learning_rates_need_fewer_trials_than_others() -> None:
    (finding,) = verdict("space-infeasible", three_of_ten("learning_rate")).findings
    assert (finding.subject, finding.side) == ("learning_rate", "high")
    (other,) = verdict("space-infeasible", three_of_ten("temperature")).findings
    assert other.subject is None


def test_trials_that_learned_nothing_at_low_rates_ask_for_higher_ones() -> None:
    rates = [1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3]
    curves = [[2.3, 2.3 - 0.1 * i] for i in range(10)]
    status = ["complete", *["not_learned"] * 3, *["complete"] * 6]
    (finding,) = verdict(
        "space-infeasible", make_study([{"lr": r} for r in rates], {"val/loss": curves}, status=status)
    ).findings
    assert (finding.severity, finding.subject) == ("note", None)
    assert str(finding.action).startswith("Search higher values of lr, or train longer")


@pytest.mark.parametrize(("failed", "best", "high"), [(3, 5, True), (3, 4, False), (1, 5, False)])
def test_higher_rates_are_searched_if_all_lower_ones_learned_nothing(failed: int, best: int, high: bool) -> None:
    rates = np.geomspace(1e-6, 1e-4, 6)
    curves = [[2.3, 2.3 if i < failed else 1.5 if i == best else 2.0 - 0.01 * i] for i in range(6)]
    status = ["not_learned"] * failed + ["complete"] * (6 - failed)
    study = make_study([{"lr": float(r)} for r in rates], {"val/loss": curves}, status=status)
    (finding,) = verdict("space-infeasible", study).findings
    (change,) = finding.changes
    assert isinstance(change, SetRange) == high
    if isinstance(change, SetRange):
        assert rates[2] * 0.99 <= change.low < rates[3]
        assert change.high >= 3e-4


def test_higher_rates_are_found_in_large_studies() -> None:
    """The number of ways to choose the failed settings exceeds every float."""
    n = 1200
    rates = np.geomspace(1e-6, 1e-4, n)
    curves = [[2.3, 2.3 if 2 * i < n else 2.0 - 1e-4 * i] for i in range(n)]
    status = ["not_learned"] * (n // 2) + ["complete"] * (n // 2)
    change = search_higher_rates(make_study([{"lr": float(r)} for r in rates], {"val/loss": curves}, status=status), 0.05)
    assert change is not None
    assert change.high >= 3e-4


def seeds_of_one_failing_setting() -> Any:
    """Five settings with five seeds each; all seeds of the one with the highest learning rate fail."""
    params = [{"learning_rate": rate, "beta": b} for rate, b in ((0.001, 0.5), (0.002, 0.6), (0.003, 0.7), (0.004, 0.8))]
    params.append({"learning_rate": 1.9494, "beta": 0.1})
    repeated = [dict(p) for p in params for _ in range(5)]
    curves = [[2.0, math.nan if p["learning_rate"] > 1 else 1.0 + 0.01 * i] for i, p in enumerate(repeated)]
    return make_study(repeated, {"val/loss": curves})


def test_repeats_of_one_failing_setting_are_no_evidence_of_a_range() -> None:
    (finding,) = verdict("space-infeasible", seeds_of_one_failing_setting()).findings
    assert str(finding.message) == "5 of 25 trials diverged, all of them repeats of one setting."
    assert str(finding.action) == (
        "Find out why one setting fails: all 5 failed trials are repeats of one setting. This setting differs from all others "
        "in beta (0.1) and learning_rate (1.949), so the cause is not known."
    )
    assert (finding.severity, [c.kind for c in finding.changes]) == ("note", ["advise"])


def test_memory_is_a_limit_and_not_the_end_of_a_range() -> None:
    params = [{"learning_rate": 10 ** (-4 + (7 * i % 16) / 8), "width": 64 * (i + 1)} for i in range(16)]
    fits = [p["width"] <= 640 for p in params]
    study = make_study(
        params,
        {
            "val/loss": [
                [2.0, 1 + 0.1 * (np.log10(p["learning_rate"]) + 3) ** 2] if f else None
                for p, f in zip(params, fits, strict=True)
            ]
        },
        status=["complete" if f else "infeasible" for f in fits],
        tags=[{} if f else {"error": "out of memory: tried to allocate 2 GiB"} for f in fits],
    )
    (finding,) = verdict("space-infeasible", study).findings
    assert str(finding.action) == "Keep width at 640 or less; larger values do not fit in memory."
    assert isinstance(finding.changes[0], SetRange)
    after = finding.changes[0].apply(study.spec).parameters["width"]
    assert (after.high, after.limits) == (640, (None, 640))
