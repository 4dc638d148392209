from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from promise import kept, scaled, studies
from studies import lacking, make_study, uniform_study, verdict

from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan

LR = Parameter(role="nuisance", low=1e-6, high=1.0, scale="log")


def valley(point: Any) -> float:
    """Good at x0 around 0.5; the others do next to nothing."""
    return float(min(8 * (point[0] - 0.5) ** 2, 0.7) + 0.05 * point[1:].sum())


def sweep(costs: Any, **more: Any) -> Study:
    rates = np.geomspace(1e-6, 1.0, len(costs))
    return make_study([{"learning_rate": float(r)} for r in rates], {"val/loss": costs}, space={"learning_rate": LR}, **more)


def example() -> Study:
    """Only middle values of one of three hyperparameters are good."""
    return uniform_study(np.random.default_rng(0), 60, 3, valley)


def test_the_next_study_searches_the_part_that_is_good() -> None:
    study = example()
    said = verdict("space-shrink", study)
    (change,) = said.findings[0].changes
    (spec, *_) = plan(study, [said]).specs
    assert (spec.parameters["x0"].low, spec.parameters["x0"].high) == (change.low, change.high)
    assert spec.parameters["x1"].low == 0, "low values of x1 are a little better"


def test_what_the_boundary_widens_is_not_narrowed() -> None:
    """In the plan the boundary wins; nor do the two ask for opposite things of one end."""
    rng = np.random.default_rng(1)
    for _ in studies(25):
        study = uniform_study(rng, 24, 2, lambda p: float(np.exp(-3 * p[0])) + 0.05 * float(rng.standard_normal()))
        boundary, shrink = verdict("space-boundary", study), verdict("space-shrink", study)
        widened = {(f.subject, f.side) for f in boundary.findings}
        for finding in shrink.findings:
            (change,) = finding.changes
            assert change.low == 0 or (finding.subject, "low") not in widened
            assert change.high == 1 or (finding.subject, "high") not in widened


def test_measures_on_the_scale_of_the_range() -> None:
    good = [0.9] * 9 + [0.5, 0.4, 0.3, 0.3, 0.4, 0.5] + [0.9] * 9
    (finding,) = verdict("space-shrink", sweep(good)).findings
    (change,) = finding.changes
    assert 1e-5 < change.low < 1e-3
    assert 1e-3 < change.high < 1e-1
    assert change.scale == "log"


def test_an_optimum_at_an_end_keeps_that_end() -> None:
    for seed in range(4):
        study = uniform_study(np.random.default_rng(seed), 60, 2, lambda p: float(np.exp(-4 * p[0])))
        for finding in verdict("space-shrink", study).findings:
            (change,) = finding.changes
            assert finding.subject == "x0"
            assert change.high == 1.0


def test_a_flat_top_is_good_as_a_whole() -> None:
    tops = [0.3 + 0.001 * abs(i - 12) for i in range(24)]
    assert verdict("space-shrink", sweep([0.9, 0.8, *tops, 0.8, 0.9])).status == "quiet"


def test_what_training_gained_says_what_is_little() -> None:
    ends = [0.3 + 0.01 * abs(i - 12) for i in range(24)]
    assert verdict("space-shrink", sweep(ends)).status == "fired"
    curves = [[5.0, 2.0, end] for end in ends]
    assert verdict("space-shrink", sweep(curves)).status == "quiet"


def test_a_side_on_which_most_trials_failed_is_left_to_others() -> None:
    costs: list[float] = [0.9] * 12 + [0.5, 0.4, 0.3, 0.3, 0.4, 0.5] + [float("nan")] * 6
    status = ["complete"] * 18 + ["diverged"] * 6
    (finding,) = verdict("space-shrink", sweep(costs, status=status)).findings
    (change,) = finding.changes
    assert change.high == 1.0
    assert change.low > 1e-5


def test_a_conditional_hyperparameter_is_judged_by_the_trials_that_have_it() -> None:
    rng = np.random.default_rng(0)
    params: list[dict[str, Any]] = []
    costs = []
    for i in range(80):
        u = float(rng.random())
        if i % 2:
            params.append({"optimizer": "sgd"})
            costs.append(0.1 + 0.1 * u)
        else:
            params.append({"optimizer": "adam", "beta": u})
            costs.append(1 + min(8 * (u - 0.5) ** 2, 0.7))
    space = {
        "optimizer": Parameter(role="scientific", type="categorical", choices=("sgd", "adam")),
        "beta": Parameter(role="nuisance", low=0.0, high=1.0, when={"optimizer": "adam"}),
    }
    study = make_study(params, {"val/loss": costs}, space=space)
    (finding,) = verdict("space-shrink", study).findings
    assert finding.subject == "beta"
    assert "Of all 40 trials" in finding.message


def test_all_trials_say_whether_it_matters_where_few_are_good() -> None:
    """Eight hyperparameters and five good trials: their place alone, one among eight, proves too little."""
    rng = np.random.default_rng(3)
    narrowed: list[str] = []
    for _ in studies(20):
        study = uniform_study(rng, 50, 8, lambda p: min(4 * abs(p[0] - 0.5), 1.2) + float(rng.exponential(0.25)))
        narrowed += [str(f.subject) for f in verdict("space-shrink", study).findings]
    assert narrowed.count("x0") >= scaled(15, of=20)
    assert len(narrowed) - narrowed.count("x0") <= 1


def test_whole_numbers_stay_whole() -> None:
    rng = np.random.default_rng(1)
    numbers = [int(n) for n in rng.integers(1, 101, 60)]
    space = {"augmentations": Parameter(role="nuisance", type="int", low=1, high=100)}
    costs = [min(abs(n - 50) / 50, 0.4) for n in numbers]
    study = make_study([{"augmentations": n} for n in numbers], {"val/loss": costs}, space=space)
    (finding,) = verdict("space-shrink", study).findings
    (change,) = finding.changes
    assert change.low == round(change.low)
    assert change.apply(study.spec).parameters["augmentations"].type == "int"


def test_what_crowds_because_a_sampler_learned_is_a_note_and_less_sure() -> None:
    rng = np.random.default_rng(0)
    points = [rng.random(2) for _ in range(30)]
    for i in range(50):
        best = min(points, key=valley)
        points.append(np.clip(best + (0.3 * 0.93**i + 0.03) * rng.standard_normal(2), 0, 1))
    params = [{f"x{j}": float(u) for j, u in enumerate(p)} for p in points]
    space = {f"x{j}": Parameter(role="nuisance", low=0.0, high=1.0) for j in range(2)}
    study = make_study(params, {"val/loss": [valley(p) for p in points]}, space=space)
    (finding,) = verdict("space-shrink", study).findings
    assert finding.severity == "note"
    assert finding.doubt == 0.8
    assert "adaptive" in str(finding.evidence)


def test_cannot_tell_from_few_trials_or_few_values() -> None:
    assert "at least 9 are needed" in lacking("space-shrink", uniform_study(np.random.default_rng(0), 8, 2, valley))
    levels = make_study([{"depth": 1 + i % 3} for i in range(20)], {"val/loss": [float(i) for i in range(20)]})
    assert lacking("space-shrink", levels)


@pytest.mark.parametrize(("trials", "names"), [(9, 1), (16, 3), (40, 8), (100, 2)])
@pytest.mark.parametrize("kind", ["noise", "ties", "failures", "another rules"])
def test_the_promise_holds(trials: int, names: int, kind: str) -> None:
    """A hyperparameter that does nothing is not narrowed, whether nothing matters or another one does."""
    rng = np.random.default_rng(trials + names)
    fired = 0
    for _ in studies(60):
        points = rng.random((trials, names + 1))
        costs = 1 + 0.03 * rng.standard_normal(trials)
        status = None
        if kind == "ties":
            costs = np.round(costs, 2)
        if kind == "another rules":
            costs = costs + 5 * (points[:, names] - 0.5) ** 2
        if kind == "failures":
            bad = rng.random(trials) < 0.2
            costs, status = np.where(bad, np.nan, costs), ["diverged" if b else "complete" for b in bad]
        params = [{f"x{j}": float(u) for j, u in enumerate(row)} for row in points]
        space = {f"x{j}": Parameter(role="nuisance", low=0.0, high=1.0) for j in range(names + 1)}
        study = make_study(params, {"val/loss": [float(c) for c in costs]}, space=space, status=status)
        found = verdict("space-shrink", study).findings
        fired += any(kind != "another rules" or f.subject != f"x{names}" for f in found)
    assert kept(fired, len(studies(60)))


def test_survivors_of_pruning_do_not_show_the_good_region() -> None:
    made = example()
    status = ["pruned"] * (len(made.trials) // 2) + ["complete"] * (len(made.trials) - len(made.trials) // 2)
    trials = tuple(replace(t, status=s) for t, s in zip(made.trials, status, strict=True))
    assert "were pruned" in lacking("space-shrink", replace(made, trials=trials))


def test_the_only_rate_that_trains_is_found_by_the_size_of_its_lead_but_not_two_with_a_bad_one_between():
    rates = [float(f"{10**x:.3g}") for x in np.linspace(-5, 2, 36)]
    study, two = (
        make_study(
            [{"lr": r} for r in rates], {"val/loss": [[2.3, 0.3 if i in best else 2.29 + 0.001 * (i % 7)] for i in range(36)]}
        )
        for best in ((20,), (20, 25))
    )
    assert verdict("space-shrink", two).status == "quiet"
    (finding,) = verdict("space-shrink", study).findings
    (change,) = finding.changes
    assert (change.low, change.high) == (pytest.approx(rates[19], rel=0.02), pytest.approx(rates[21], rel=0.02))
    assert "Only 1 of 36 trials is good" in str(finding.message)
