from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import kept, studies
from studies import lacking, make_study, uniform_study, verdict

from advisor.model.change import SetField
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan
from advisor_rules.space.space_undersampled import SpaceUndersampled


def bowl(point: Any) -> float:
    return 0.3 + float(np.sum((point - 0.4) ** 2))


def sharp(point: Any) -> float:
    return 0.3 + float(np.exp(-3 * np.linalg.norm(point - 0.4))) * -0.2


def example() -> Study:
    """Eight trials of five hyperparameters."""
    return uniform_study(np.random.default_rng(5), 8, 5, bowl)


@pytest.mark.parametrize("names", [3, 5])
def test_fires_on_few_trials_of_many_hyperparameters_and_asks_for_more(names: int) -> None:
    study = uniform_study(np.random.default_rng(names), 8, names, bowl)
    (finding,) = verdict("space-undersampled", study).findings
    assert finding.goal == "sampling"
    assert 0.05 < finding.confidence < 1
    change = finding.changes[0]
    assert isinstance(change, SetField)
    assert change.field == "trials"
    assert change.value in (16, 32)
    assert "probability" in finding.message
    assert change.apply(study.spec).trials == change.value


def test_the_probability_of_a_gain_has_a_limit_of_its_own() -> None:
    (finding,) = verdict("space-undersampled", example()).findings
    strict = SpaceUndersampled(possible=min(finding.confidence + 0.01, 1.0))
    assert not list(strict.check(example()))


def test_the_next_study_has_more_trials_of_fewer_hyperparameters() -> None:
    study = uniform_study(np.random.default_rng(3), 8, 3, bowl)
    said = verdict("space-undersampled", study)
    (spec, *_) = plan(study, [said]).specs
    assert spec.trials is not None
    assert spec.trials > 8
    assert len(spec.searched) == 2
    assert any("alternative is to search all 3 hyperparameters" in note for note in spec.notes)


def test_the_message_says_what_half_of_the_trials_would_have_lost() -> None:
    costs = [0.5, 0.8, 0.9, 1.2, 1.3, 1.7, 2.0, 2.4]
    study = uniform_study(np.random.default_rng(0), 8, 3, lambda _: costs.pop())
    (finding,) = verdict("space-undersampled", study).findings
    # Ranks 2 to 5 are the best of four of eight with chances 20, 10, 4 and 1 in 70.
    loss = (20 * 0.3 + 10 * 0.4 + 4 * 0.7 + 1 * 0.8) / 70
    assert f"{loss:.3g} worse" in finding.message
    assert "0.5" in finding.message


def test_stays_quiet_where_many_trials_are_about_as_good() -> None:
    for seed in range(10):
        study = uniform_study(np.random.default_rng(seed), 60, 2, bowl)
        assert verdict("space-undersampled", study).status == "quiet"


def test_what_seeds_do_is_no_reason_for_more_trials() -> None:
    rng = np.random.default_rng(1)
    study = uniform_study(rng, 8, 4, bowl)
    params = [dict(t.params) for t in study.trials]
    costs = [float(study.costs[t.index]) for t in study.trials]
    calm, noisy = (
        make_study(
            [p for p in params for _ in range(3)],
            {"val/loss": [c + noise * s for c in costs for s in (-1.0, 0.0, 1.0)]},
            space=study.spec.parameters,
            seeds=[0, 1, 2] * 8,
        )
        for noise in (1e-3, 0.5)
    )
    assert verdict("space-undersampled", study).status == "fired"
    assert verdict("space-undersampled", calm).status == "fired"
    assert "the noise between seeds" in lacking("space-undersampled", noisy)


def test_cannot_tell_without_trials_or_hyperparameters() -> None:
    few = uniform_study(np.random.default_rng(0), 4, 2, bowl)
    assert "at least 5 are needed" in lacking("space-undersampled", few)
    fixed = make_study([{} for _ in range(6)], {"val/loss": [float(i) for i in range(6)]})
    assert lacking("space-undersampled", fixed)


def test_failed_trials_are_no_evidence_of_a_gap() -> None:
    study = uniform_study(np.random.default_rng(3), 8, 3, bowl, status=["complete"] * 3 + ["diverged"] * 5)
    for finding in verdict("space-undersampled", study).findings:
        assert "5 of them failed" in str(finding.evidence[0].rows[0][1])


def test_a_sampler_that_learned_makes_it_a_note() -> None:
    rng = np.random.default_rng(0)
    points = [rng.random(3) for _ in range(6)]
    for i in range(24):
        best = min(points, key=bowl)
        points.append(np.clip(best + 0.3 * 0.9**i * rng.standard_normal(3), 0, 1))
    params = [{f"x{j}": float(u) for j, u in enumerate(p)} for p in points]
    space = {f"x{j}": Parameter(low=0.0, high=1.0) for j in range(3)}
    study = make_study(params, {"val/loss": [bowl(p) for p in points]}, space=space)
    for finding in verdict("space-undersampled", study, little=0.001, little_of_all=0.0001).findings:
        assert finding.severity == "note"


def equally_good(rng: np.random.Generator, trials: int, names: int, kind: str) -> Study:
    """Return a study whose settings differ only by noise."""
    costs = 1 + 0.03 * rng.standard_normal(trials)
    status = None
    if kind == "ties":
        costs = np.round(costs, 2)
    if kind == "failures":
        bad = rng.random(trials) < 0.2
        costs, status = np.where(bad, np.nan, costs), ["diverged" if b else "complete" for b in bad]
    if kind != "choices":
        values = iter(costs)
        return uniform_study(rng, trials, names, lambda _: next(values), status=status)
    params: list[dict[str, Any]] = [{"a": "pq"[i and int(rng.integers(2))], "b": float(rng.random())} for i in range(trials)]
    space = {"a": Parameter(type="categorical", choices=("p", "q")), "b": Parameter(low=0.0, high=1.0, when={"a": "p"})}
    params = [p if p["a"] == "p" else {"a": "q"} for p in params]
    return make_study(params, {"val/loss": [float(c) for c in costs]}, space=space)


@pytest.mark.parametrize("kind", ["noise", "ties", "failures", "choices"])
def test_the_promise_holds_where_all_settings_are_equally_good(kind: str) -> None:
    fired = asked = 0
    for trials, names in ((5, 2), (8, 4), (20, 8), (64, 3)):
        rng = np.random.default_rng(trials + names)
        for _ in studies(60):
            fired += verdict("space-undersampled", equally_good(rng, trials, names, kind)).status == "fired"
            asked += 1
    assert kept(fired, asked)


def test_stays_quiet_with_enough_trials() -> None:
    """A grid, a single hyperparameter, a thousand trials, and a response that shows that the best trial is at the optimum."""
    at = np.array([[0.4, 0.4], [0.1, 0.2], [0.9, 0.8], [0.2, 0.9], [0.8, 0.1], [0.0, 0.6], [0.6, 1.0], [1.0, 0.4]])
    axis = np.linspace(0, 1, 6)
    tried = (np.array([[x, y] for x in axis for y in axis]), np.vstack([at, np.random.default_rng(0).random((16, 2))]))
    made = [make_study([{"x": float(x), "y": float(y)} for x, y in p], {"val/loss": [bowl(row) for row in p]}) for p in tried]
    made += [uniform_study(np.random.default_rng(0), 12, 1, sharp), uniform_study(np.random.default_rng(0), 1000, 3, bowl)]
    assert [verdict("space-undersampled", s).status for s in made] == ["quiet"] * 4


def test_cannot_tell_if_all_differences_may_be_noise() -> None:
    rng = np.random.default_rng(4)
    results = [uniform_study(rng, 12, 3, lambda _: 0.5 + 0.004 * rng.standard_normal()) for _ in range(10)]
    reasons = [str(v.reason) for s in results if (v := verdict("space-undersampled", s)).status == "not-assessed"]
    assert len(reasons) >= 5
    assert all("may be noise" in r for r in reasons)
